#include "residency/weight_store.h"

#include <doctest/doctest.h>

#include <fstream>

#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

TEST_CASE("in place: identity weights at aligned offsets of a mapped file on the CPU, and nothing else") {
  const TestFolder folder;
  const std::vector<TestTensor> tensors = {random_tensor("a", DType::f16, {30, 7}, 1), random_tensor("b", DType::f32, {9}, 2),
                                           random_tensor("c", DType::bf16, {11, 3}, 3),
                                           random_tensor("d", DType::f16, {13}, 4)};
  write_test_file(folder.file("aligned.safetensors"), tensors, 64);
  // One byte in front, and nothing lies at an even offset.
  std::vector<TestTensor> odd = tensors;
  odd.insert(odd.begin(), random_tensor("byte", DType::u8, {1}, 5));
  write_test_file(folder.file("packed.safetensors"), odd);
  const auto make = [&](const std::string& name) {
    const auto file = open_test_file(folder.file(name), *system_files());
    Fixture model;
    model.block();
    model.weight(file, "a", WeightRole::matrix);
    model.weight(file, "b", WeightRole::vector);
    model.block();
    model.weight(file, "c", WeightRole::matrix);
    model.block();
    model.weight(file, "c", WeightRole::matrix);
    model.weight(file, "d", WeightRole::vector);  // must be widened
    model.block();
    return model;
  };
  const Fixture aligned = make("aligned.safetensors"), packed = make("packed.safetensors");
  const auto mappable = [](const Fixture& model, TestDevice& device, HostTier tier) {
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, model.spec());
    std::vector<bool> blocks;
    for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) blocks.push_back(store.mappable({id, b}));
    return blocks;
  };
  TestDevice device;
  const std::vector<bool> none(4, false);
  CHECK(mappable(aligned, device, HostTier::mapped) == std::vector<bool>{true, true, false, false});
  CHECK(mappable(packed, device, HostTier::mapped) == none);
  CHECK(mappable(aligned, device, HostTier::read) == none);
  CHECK(mappable(aligned, device, HostTier::disk) == none);
  TestDevice simulated, integrated, incapable, strict;
  simulated.info_.kind = DeviceKind::simulated;
  integrated.info_.kind = incapable.info_.kind = DeviceKind::integrated;
  incapable.maps = false;
  strict.info_.alignment = 1 << 20;
  CHECK(mappable(aligned, simulated, HostTier::mapped) == none);
  CHECK(mappable(aligned, integrated, HostTier::mapped) == mappable(aligned, device, HostTier::mapped));
  CHECK(mappable(aligned, incapable, HostTier::mapped) == none);
  CHECK(mappable(aligned, strict, HostTier::mapped) == none);

  WeightStore store(device, {.tier = HostTier::mapped});
  const ComponentId id = must_add(store, aligned.spec());
  const ggml_context_ptr context{ggml_init({ggml_tensor_overhead() * 16, nullptr, true})};
  const auto tensor = [&](std::uint32_t block, std::size_t weight) {
    const auto& t = store.layout({id, block}).tensors[weight];
    return ggml_new_tensor(context.get(), t.type, static_cast<int>(t.shape.size()), t.shape.data());
  };
  ggml_tensor* a = tensor(0, 0);
  ggml_tensor* b = tensor(0, 1);
  CHECK(store.bind_mapped({id, 0}, 1, a).error().code == Code::invalid_argument);
  CHECK(store.bind_mapped({id, 0}, 0, a) == true);
  CHECK(store.bind_mapped({id, 0}, 1, b) == true);
  CHECK(store.bind_mapped({id, 0}, 0, a).error().code == Code::invalid_argument);  // has its memory already
  CHECK(std::memcmp(a->data, tensors[0].data.data(), tensors[0].data.size()) == 0);
  CHECK(std::memcmp(b->data, tensors[1].data.data(), tensors[1].data.size()) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(a->data) % 64 == 0);
  CHECK(a->buffer == b->buffer);
  CHECK(a->view_src == nullptr);
  CHECK(store.bind_mapped({id, 2}, 0, tensor(2, 0)) == false);
  store.drop_mapped({id, 0});
  CHECK(std::memcmp(a->data, tensors[0].data.data(), tensors[0].data.size()) == 0);  // dropped pages come back

  CHECK(device.ledger().report().peak == 0);  // what is bound is booked by who binds
  REQUIRE(store.remove(id));
}

#if defined(__linux__) && !defined(SLUICE_SANITIZED)
TEST_CASE("mapped: private memory stays below a twentieth of the file") {
  const auto private_dirty = [] {
    std::ifstream rollup("/proc/self/smaps_rollup");
    for (std::string line; std::getline(rollup, line);)
      if (line.starts_with("Private_Dirty:")) return Bytes{std::stoull(line.substr(14))} * KiB;
    FAIL("no Private_Dirty");
    return Bytes{0};
  };
  const TestFolder folder;
  constexpr int kTensors = 8;
  {
    std::vector<TestTensor> tensors;
    for (int i = 0; i < kTensors; ++i)
      tensors.push_back({"t" + std::to_string(i), DType::f16, {1024, 2048}, std::vector<std::byte>(4 * MiB, std::byte{0x11})});
    write_test_file(folder.file("t.safetensors"), tensors, 64);
  }
  Fixture model;
  const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
  for (int i = 0; i < kTensors; ++i) {
    model.block();
    model.weight(file, "t" + std::to_string(i), WeightRole::matrix);
  }
  std::vector<std::byte> staging(4 * MiB, std::byte{1});
  const ggml_context_ptr context{ggml_init({ggml_tensor_overhead() * kTensors, nullptr, true})};
  TestDevice device;
  const Bytes before = private_dirty();
  WeightStore store(device, {.tier = HostTier::mapped});
  const ComponentId id = must_add(store, model.spec());
  unsigned sum = 0;
  for (std::uint32_t b = 0; b < kTensors; ++b) {
    REQUIRE(store.fetch({id, b}, staging, CancelToken()));
    ggml_tensor* t = ggml_new_tensor_2d(context.get(), GGML_TYPE_F16, 1024, 2048);
    REQUIRE(store.bind_mapped({id, b}, 0, t) == true);
    for (Bytes i = 0; i < 4 * MiB; i += 512) sum += static_cast<const unsigned char*>(t->data)[i];
  }
  CHECK(sum == kTensors * (4 * MiB / 512) * 0x11);
  const Bytes after = private_dirty();
  CHECK(after < before + kTensors * 4 * MiB / 20);
}
#endif
