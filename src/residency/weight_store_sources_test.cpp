// Several files under several components, and what stays when some go.
#include <doctest/doctest.h>

#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

TEST_CASE("sources: names are unique, a used file stays, metadata are the owning file's") {
  const TestFolder folder;
  const auto write = [&](const std::string& name, const std::string& title) {
    const auto tensor = random_tensor("w", DType::f16, {8, 4}, 1);
    const std::vector<TensorToWrite> tensors = {{tensor.name, tensor.dtype, tensor.shape, tensor.data}};
    REQUIRE(write_safetensors(folder.file(name), tensors, {{"title", title}}, 64));
  };
  write("main.safetensors", "main");
  write("vae.safetensors", "vae");
  TestDevice device;
  WeightStore store(device, {});
  const auto main = store.add_source("main", folder.file("main.safetensors"), *system_files());
  REQUIRE(main);
  const auto vae = open_test_file(folder.file("vae.safetensors"), *system_files());
  REQUIRE(store.add_source("vae", vae));
  const auto clash = store.add_source("vae", *main);
  REQUIRE_FALSE(clash);
  CHECK(clash.error().code == Code::invalid_argument);
  CHECK(clash.error().message.find("vae.safetensors") != std::string::npos);
  CHECK(store.add_source("again", *main).error().code == Code::invalid_argument);
  CHECK(store.add_source("", *main).error().code == Code::invalid_argument);
  CHECK(store.add_source("nothing", nullptr).error().code == Code::invalid_argument);
  CHECK(store.add_source("absent", folder.file("absent"), *system_files()).error().code == Code::not_found);
  CHECK(store.remove_source("absent").error().code == Code::not_found);

  Fixture decoder, both;
  decoder.block();
  decoder.weight(vae, "w", WeightRole::matrix);
  both.block();
  both.weight(*main, "w", WeightRole::matrix);
  both.weight(vae, "w", WeightRole::matrix);
  const ComponentId a = must_add(store, decoder.spec("decoder")), b = must_add(store, both.spec("both"));
  const auto of_a = store.sources_of(a), of_b = store.sources_of(b);
  REQUIRE(of_a.size() == 1);
  CHECK(of_a[0].name == "vae");
  CHECK(of_a[0].file->metadata.at("title") == "vae");
  REQUIRE(of_b.size() == 2);
  CHECK(of_b[0].name == "main");
  CHECK(of_b[1].name == "vae");

  const auto refused = store.remove_source("vae");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::invalid_argument);
  CHECK(refused.error().message ==
        "source 'vae' (" + folder.file("vae.safetensors") + ") is used by 'decoder', 'both': remove them first");
  REQUIRE(store.remove(b));
  REQUIRE(store.remove_source("main"));
  CHECK_FALSE(store.remove_source("vae"));
  REQUIRE(store.remove(a));
  REQUIRE(store.remove_source("vae"));
  REQUIRE(store.add_source("vae", *main));

  const ComponentId loose = must_add(store, decoder.spec("loose"));
  REQUIRE(store.sources_of(loose).size() == 1);
  CHECK(store.sources_of(loose)[0].name.empty());
}

TEST_CASE("sources: one error over several files names each tensor's file") {
  const TestFolder folder;
  write_test_file(folder.file("a"), {random_tensor("x", DType::f16, {8, 4}, 1)});
  write_test_file(folder.file("b"), {random_tensor("y", DType::f16, {8, 4}, 1)});
  const auto a = open_test_file(folder.file("a"), *system_files()), b = open_test_file(folder.file("b"), *system_files());
  Fixture model;
  model.block();
  model.weight(a, "x", WeightRole::matrix, {4, 8});
  model.weight(b, "y", WeightRole::matrix, {4, 8});
  TestDevice device;
  WeightStore store(device, {});
  const auto refused = store.add(model.spec("both"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "both: 2 weights do not fit their files: " + folder.file("a") +
                                       ": x: got f16 [8, 4], expected [4, 8]; " + folder.file("b") +
                                       ": y: got f16 [8, 4], expected [4, 8]");
}

TEST_CASE("remove: a neighbour in the same mapped file still computes, bit for bit") {
  const TestFolder folder;
  write_test_file(folder.file("t"), {random_tensor("a", DType::f16, {64, 32}, 1), random_tensor("b", DType::f16, {64, 32}, 2)},
                  64);
  const auto file = open_test_file(folder.file("t"), *system_files());
  Fixture first, second;
  first.block();
  first.weight(file, "a", WeightRole::matrix);
  second.block();
  second.weight(file, "b", WeightRole::matrix);
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  WeightStore store(**device, {.tier = HostTier::mapped});
  const ComponentId a = must_add(store, first.spec("a")), b = must_add(store, second.spec("b"));

  const auto run = [&](ComponentId id) {
    const ggml_context_ptr context{ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true})};
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), GGML_TYPE_F16, 64, 32);
    REQUIRE(store.bind_mapped({id, 0}, 0, weight) == true);
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 3);
    ggml_tensor* y = ggml_mul_mat(context.get(), weight, x);
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, y);
    const ggml_backend_buffer_ptr buffer{ggml_backend_alloc_ctx_tensors_from_buft(context.get(), (*device)->buffer_type())};
    REQUIRE(buffer);
    const auto values = random_floats(64 * 3, 5);
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * 4);
    REQUIRE((*device)->compute(graph, 0, CancelToken()));
    std::vector<float> out(32 * 3);
    ggml_backend_tensor_get(y, out.data(), 0, out.size() * 4);
    return out;
  };
  const auto before = run(b);
  CHECK(run(a) != before);
  REQUIRE(store.remove(a));
  CHECK(run(b) == before);
  store.drop_mapped({b, 0});
  CHECK(run(b) == before);
}
