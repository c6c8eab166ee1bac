#include "models/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "doctest/doctest.h"
#include "gguf.h"
#include "models/describe.h"
#include "models/oracle.h"
#include "nn/weight_shape.h"

namespace sluice::testing {
namespace {

std::string demo_path() { return std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors"; }

/// A file's header, to be changed: names and shapes are all that loading looks at.
struct Header {
  TensorFile file;
  explicit Header(const TensorFile& from) : file(from) {}
  TensorInfo& tensor(const std::string& name) { return file.tensors.at(file.index.at(name)); }
  template <typename Predicate>
  void erase_if(const Predicate& gone) {
    std::erase_if(file.tensors, gone);
  }
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    TensorInfo info;
    info.name = name;
    info.shape = std::move(shape);
    info.size = static_cast<Bytes>(info.elements()) * 4;
    file.tensors.push_back(info);
  }
  std::shared_ptr<const TensorFile> take() {
    file.index.clear();
    for (std::size_t i = 0; i < file.tensors.size(); ++i) file.index.emplace(file.tensors[i].name, i);
    return std::make_shared<const TensorFile>(file);
  }
};

Result<Sd1Model> load(const std::shared_ptr<const TensorFile>& file, const ClipTextOutputs& outputs = {}) {
  return load_sd1({.main = file, .text = nullptr, .autoencoder = nullptr}, outputs);
}

std::string message_of(const Result<Sd1Model>& model) { return model ? std::string("loaded") : model.error().message; }

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Builds every block's graph without memory: what ggml would abort on, it aborts on here.
void build_graphs(const Component& component, std::map<std::uint32_t, std::vector<std::int64_t>> shapes) {
  for (std::size_t b = 0; b < component.model->blocks.size(); ++b) {
    const Block& block = component.model->blocks[b];
    ggml_context_ptr context(ggml_init({1024 * ggml_tensor_overhead(), nullptr, true}));
    const auto make = [&](const std::vector<std::int64_t>& shape) {
      return ggml_new_tensor(context.get(), GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
    };
    std::vector<ggml_tensor*> weights, inputs;
    for (std::size_t i = 0; i < block.weights.size(); ++i) {
      REQUIRE(same_elements(component.origins[b][i].info().shape, block.weights[i].shape));
      weights.push_back(make(block.weights[i].shape));
    }
    for (const Value value : block.inputs) inputs.push_back(make(shapes.at(value.id)));
    const Variants variants;
    GraphBuilder builder(context.get(), variants, weights);
    const auto outputs = block.forward(builder, inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) shapes[block.outputs[i].id].assign(outputs[i]->ne, outputs[i]->ne + 4);
  }
}

void build_all_graphs(const Sd1Model& m) {
  const auto& text = m.text;
  build_graphs(text.component, {{text.values.embedded.id, {text.config.hidden, text.config.positions}}});
  const auto& unet = m.denoiser;
  const std::int64_t size = unet.config.latent_multiple();
  build_graphs(unet.component, {{unet.values.x.id, {size, 2 * size, unet.config.in_channels, 1}},
                                {unet.values.t_emb.id, {unet.config.model_channels, 1}},
                                {unet.values.context.id, {unet.config.context, text.config.positions}}});
  const auto& vae = m.autoencoder;
  build_graphs(vae.decoder, {{vae.decoder_values.latent.id, {2, 3, vae.config.latent_channels, 1}}});
  if (vae.encoder) {
    build_graphs(*vae.encoder, {{vae.encoder_values.image.id,
                                 {2 * vae.config.factor(), 3 * vae.config.factor(), vae.config.image_channels, 1}}});
  }
}

}  // namespace

TEST_CASE("load_sd1: the demo model") {
  const auto file = open(demo_path());
  const auto model = load(file);
  REQUIRE_MESSAGE(model, message_of(model));
  CHECK(model->warnings.empty());
  CHECK(model->native_width == 64);
  CHECK(model->native_height == 64);
  CHECK(model->pixel_multiple() == 32);
  CHECK(model->text.config.heads == 1);
  CHECK(model->text.config.layers == 4);
  CHECK(model->text.tokens.rows == 49408);
  CHECK(model->text.tokens.width == 64);
  CHECK(model->denoiser.config.input.back().channels == 128);
  CHECK(model->autoencoder.config.decoder.levels.size() == 3);
  // Every tensor of the file is some block's weight, once, but for the token table.
  std::vector<int> uses(file->tensors.size());
  const auto count = [&](const Component& c) {
    REQUIRE(c.origins.size() == c.model->blocks.size());
    for (std::size_t b = 0; b < c.origins.size(); ++b) {
      REQUIRE(c.origins[b].size() == c.model->blocks[b].weights.size());
      for (std::size_t w = 0; w < c.origins[b].size(); ++w) {
        ++uses[c.origins[b][w].tensor];
        CHECK(c.origins[b][w].info().name.ends_with(c.model->blocks[b].weights[w].name));
      }
    }
  };
  count(model->text.component);
  count(model->denoiser.component);
  count(model->autoencoder.decoder);
  count(*model->autoencoder.encoder);
  ++uses[model->text.tokens.origin.tensor];
  CHECK(std::all_of(uses.begin(), uses.end(), [](int n) { return n == 1; }));
  build_all_graphs(*model);
}

TEST_CASE("load_sd1: a checkpoint with the usual ballast gives no warning, a stranger does") {
  const auto file = open(golden("pipeline/sd1_checkpoint/model.safetensors"));
  const auto model = load(file);
  REQUIRE_MESSAGE(model, message_of(model));
  CHECK(model->warnings.empty());
  CHECK(model->native_width == 512);
  CHECK(model->pixel_multiple() == 64);
  const auto skipped = load(file, {.last_hidden = false, .skipped_ln = true, .skip = 1});
  REQUIRE_MESSAGE(skipped, message_of(skipped));
  CHECK(skipped->warnings.empty());

  Header header(*file);
  header.add("model.diffusion_model.input_blocks.1.1.extra.weight", {3});
  for (int i = 0; i < 6; ++i) header.add("stranger." + std::to_string(i), {3});
  const auto strange = load(header.take());
  REQUIRE(strange);
  REQUIRE(strange->warnings.size() == 1);
  CHECK(contains(strange->warnings[0], "7 tensors are not used"));
  CHECK(contains(strange->warnings[0], "input_blocks.1.1.extra.weight"));
  CHECK(contains(strange->warnings[0], "…"));
}

TEST_CASE("load_sd1: whatever tensor is missing is named, with its part, before anything is read") {
  const auto file = open(demo_path());
  const Bytes read = file->file->bytes_read();
  for (std::size_t i = 0; i < file->tensors.size(); i += 5) {
    const std::string name = file->tensors[i].name;
    CAPTURE(name);
    Header header(*file);
    header.erase_if([&](const TensorInfo& t) { return t.name == name; });
    const auto model = load(header.take());
    REQUIRE(!model);
    CHECK(model.error().code == Code::not_found);
    CHECK(contains(model.error().message, name));
    const std::string part = name.starts_with("cond") ? "text" : name.starts_with("model.") ? "denoiser" : "coder";
    CHECK(contains(model.error().message, part));
  }
  CHECK(file->file->bytes_read() == read);

  Header many(*file);
  many.erase_if([](const TensorInfo& t) { return t.name.find("input_blocks.4.1.transformer_blocks.0.") != std::string::npos; });
  const auto model = load(many.take());
  REQUIRE(!model);
  CHECK(contains(model.error().message, "lacks 20 tensors"));
  CHECK(contains(model.error().message, "attn1.to_k.weight [64, 64]"));
  CHECK(contains(model.error().message, "…"));
}

TEST_CASE("load_sd1: a file without an encoder is a model without one; half an encoder is an error") {
  const auto file = open(demo_path());
  Header none(*file);
  none.erase_if([](const TensorInfo& t) {
    return t.name.starts_with("first_stage_model.encoder.") || t.name.starts_with("first_stage_model.quant_conv.");
  });
  const auto model = load(none.take());
  REQUIRE_MESSAGE(model, message_of(model));
  CHECK(!model->autoencoder.encoder);
  build_all_graphs(*model);
  Header half(*file);
  half.erase_if([](const TensorInfo& t) { return t.name.starts_with("first_stage_model.encoder.mid."); });
  CHECK(load(half.take()).error().code == Code::not_found);
}

TEST_CASE("load_sd1: wrong shapes are named with both shapes; shapes of equal elements are right") {
  const auto file = open(demo_path());
  const std::string name = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight";
  Header wrong(*file);
  wrong.tensor(name).shape = {64, 65};
  const auto model = load(wrong.take());
  REQUIRE(!model);
  CHECK(model.error().code == Code::corrupt);
  CHECK(contains(model.error().message, name + ": [64, 65] instead of [64, 64]"));

  // As GGUF writes them, and as later models store projections.
  Header flat(*file);
  for (auto& tensor : flat.file.tensors) {
    if (tensor.shape.size() == 4 && tensor.shape[0] == 1 && tensor.shape[1] == 1 && !tensor.name.ends_with("quant_conv.weight"))
      tensor.shape.erase(tensor.shape.begin(), tensor.shape.begin() + 2);
  }
  const auto loaded = load(flat.take());
  REQUIRE_MESSAGE(loaded, message_of(loaded));
  build_all_graphs(*loaded);
}

TEST_CASE("load_sd1: a needed tensor of an unknown dtype is an error, an unneeded one a warning") {
  const auto file = open(demo_path());
  for (const std::string name :
       {"model.diffusion_model.out.2.bias", "model.diffusion_model.middle_block.0.in_layers.0.weight"}) {
    Header header(*file);
    header.erase_if([&](const TensorInfo& t) { return t.name == name; });
    header.file.unknown.push_back(name);
    const auto model = load(header.take());
    REQUIRE(!model);
    CHECK(model.error().code == Code::unsupported);
    CHECK(contains(model.error().message, name));
  }
  Header header(*file);
  header.file.unknown.push_back("odd");
  const auto model = load(header.take());
  REQUIRE(model);
  CHECK(model->warnings.size() == 1);
}

TEST_CASE("load_sd1: parts from other files, parts that do not fit, parts that are not there") {
  const auto demo = open(demo_path()), other = open(golden("pipeline/sd1_checkpoint/model.safetensors"));
  Header bare(*demo);
  bare.erase_if([](const TensorInfo& t) { return !t.name.starts_with("first_stage_model."); });
  for (auto& tensor : bare.file.tensors) tensor.name.erase(0, std::string_view("first_stage_model.").size());
  const auto vae = bare.take();
  const auto mixed = load_sd1({.main = other, .text = nullptr, .autoencoder = vae}, {});
  REQUIRE_MESSAGE(mixed, message_of(mixed));
  CHECK(mixed->autoencoder.config.factor() == 4);
  CHECK(mixed->autoencoder.decoder.origins[0][0].file == vae);
  CHECK(mixed->warnings.empty());

  const auto wide = open(golden("clip_text/clip_l_hf/weights.safetensors"));
  CHECK(load_sd1({.main = demo, .text = wide, .autoencoder = nullptr}, {}).error().code == Code::unsupported);
  const auto alone = load(wide);
  REQUIRE(!alone);
  CHECK(alone.error().code == Code::not_found);
  CHECK(contains(alone.error().message, "holds no denoiser"));
  CHECK(load(std::make_shared<const TensorFile>()).error().code == Code::not_found);
}

TEST_CASE("load_sd1: the size is the main file's, whatever the autoencoder's file says") {
  const auto file = open(demo_path());
  Header main(*file), vae(*file);
  main.file.metadata["modelspec.resolution"] = "768x512";
  vae.file.metadata["modelspec.resolution"] = "64x64";
  const auto autoencoder = vae.take();
  const auto model = load_sd1({.main = main.take(), .text = nullptr, .autoencoder = autoencoder}, {});
  REQUIRE(model);
  CHECK(model->native_width == 768);
  CHECK(model->native_height == 512);
  CHECK(model->autoencoder.decoder.origins[0][0].file == autoencoder);
}

TEST_CASE("ignored tensors are declared, each by its name or as a kind; whatever resembles one is a stranger") {
  for (const auto& declared : part_declarations()) {
    CHECK(declaration_of(declared.part).name == part_name(declared.part));
    for (const auto& ignored : declared.ignored) {
      const std::string name = std::string(ignored.name) + (ignored.start ? "x" : "");
      CHECK(is_ballast(name));
      CHECK(is_ballast(std::string(declared.prefix) + name));
      CHECK_FALSE(is_ballast("x" + name));
      if (!ignored.start) CHECK_FALSE(is_ballast(name + "x"));
    }
  }
  for (const char* name : {"betas", "model_ema.decay", "cond_stage_model.logit_scale", "loss.logvar"}) CHECK(is_ballast(name));
  for (const char* name : {"betas2", "my.betas", "decoder.loss.weight", "model.diffusion_model.loss.weight",
                           "cond_stage_model.loss", "encoder.conv_in.bias"})
    CHECK_FALSE(is_ballast(name));
}

TEST_CASE("load_sd1: modelspec.resolution decides the size, nonsense in it does not") {
  const auto file = open(demo_path());
  const auto size_of = [&](const std::string& text) {
    Header header(*file);
    header.file.metadata["modelspec.resolution"] = text;
    const auto model = load(header.take());
    REQUIRE(model);
    return std::tuple{model->native_width, model->native_height, model->warnings.size()};
  };
  CHECK(size_of("768x512") == std::tuple{768, 512, 0u});
  for (const std::string text :
       {"", "x", "64", "64x", "x64", "0x64", "64x-1", "64x64x64", "99999999999999999999x64", "64 x 64", "70000x64"}) {
    CAPTURE(text);
    CHECK(size_of(text) == std::tuple{512, 512, 1u});
  }
}

TEST_CASE("load_sd1: mutated headers give errors or models whose every graph can be built") {
  const auto file = open(demo_path());
  int accepted = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Header header(*file);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    for (std::size_t n = 1 + below(3); n > 0; --n) {
      auto& tensors = header.file.tensors;
      TensorInfo& tensor = tensors[below(tensors.size())];
      switch (below(5)) {
        case 0:  // Readers let no more than 2^63 elements pass, unless one dimension is 0.
          tensor.shape.assign(below(5), static_cast<std::int64_t>(1) << below(16));
          if (below(4) == 0) tensor.shape = {static_cast<std::int64_t>(1) << 62, 0};
          break;
        case 1:
          if (!tensor.shape.empty()) tensor.shape[below(tensor.shape.size())] = static_cast<std::int64_t>(below(3) * 32);
          break;
        case 2: tensor.name = tensors[below(tensors.size())].name + "x"; break;
        case 3: {
          const auto digit = tensor.name.find_first_of("0123456789");
          if (digit != std::string::npos) tensor.name[digit] = static_cast<char>('0' + below(10));
          break;
        }
        default: {
          // A consistent change: one width everywhere at once.
          const std::int64_t from = 128, to = static_cast<std::int64_t>(below(6)) * 32;
          for (auto& t : tensors) {
            if (t.name.starts_with("model.diffusion_model.")) std::replace(t.shape.begin(), t.shape.end(), from, to);
          }
        }
      }
    }
    const auto model = load(header.take());
    if (model) {
      ++accepted;
      build_all_graphs(*model);
    } else {
      CHECK(!model.error().message.empty());
    }
    const auto summary = describe(*header.take());
    if (model)
      CHECK(std::all_of(summary.parts.begin(), summary.parts.end(), [](const PartSummary& p) { return p.complete(); }));
  }
  CHECK(accepted > 0);
}

TEST_CASE("load_autoencoder_kl: a GGUF file gives the bits of the safetensors file") {
  const auto file = open(golden("pipeline/sd1_checkpoint/model.safetensors"));
  const std::string prefix = "first_stage_model.";
  gguf_context_ptr gguf(gguf_init_empty());
  ggml_context_ptr tensors(ggml_init({16 * MiB, nullptr, false}));
  for (const auto& info : file->tensors) {
    if (!info.name.starts_with(prefix)) continue;
    REQUIRE(info.dtype == DType::f16);
    ggml_tensor* tensor = ggml_new_tensor(tensors.get(), GGML_TYPE_F16, static_cast<int>(info.shape.size()), info.shape.data());
    ggml_set_name(tensor, info.name.c_str());
    REQUIRE(read_tensor(*file, info, {static_cast<std::byte*>(tensor->data), info.size}));
    gguf_add_tensor(gguf.get(), tensor);
  }
  const auto path =
      std::filesystem::temp_directory_path() / ("sluice-models-test-" + std::to_string(std::random_device{}()) + ".gguf");
  REQUIRE(gguf_write_to_file(gguf.get(), path.c_str(), false));
  {
    const auto converted = open(path.string());
    CHECK(converted->format == "gguf");
    const auto a = load_autoencoder_kl(file), b = load_autoencoder_kl(converted);
    REQUIRE(a);
    REQUIRE_MESSAGE(b, (b ? "" : b.error().message));
    const auto decode = [](const AutoencoderPart& part) {
      HostTensor latent{{3, 2, 4, 1}, {}};
      for (int i = 0; i < 24; ++i) latent.data.push_back(static_cast<float>(i % 7) - 3);
      return BlockRunner(WeightTypes::device)
          .run(part.decoder, {{part.decoder_values.latent.id, latent}})
          .at(part.decoder_values.image.id)
          .data;
    };
    CHECK(decode(*a) == decode(*b));
  }
  std::filesystem::remove(path);
}

TEST_CASE("describe: parts, dimensions, bytes, ballast and what is missing") {
  const auto demo = open(demo_path());
  const auto summary = describe(*demo);
  CHECK(summary.architecture == "Stable Diffusion 1.x");
  REQUIRE(summary.parts.size() == 3);
  Bytes bytes = 0;
  for (const auto& part : summary.parts) {
    CHECK(part.complete());
    CHECK(part.dtypes.size() == 1);
    CHECK(part.dtypes.at("f16") == part.bytes);
    bytes += part.bytes;
  }
  Bytes all = 0;
  for (const auto& tensor : demo->tensors) all += tensor.size;
  CHECK(bytes == all);
  CHECK(summary.other_tensors == 0);
  CHECK(std::find(summary.parts[0].dimensions.begin(), summary.parts[0].dimensions.end(),
                  std::pair<std::string, std::int64_t>{"hidden", 64}) != summary.parts[0].dimensions.end());

  const auto checkpoint = describe(*open(golden("pipeline/sd1_checkpoint/model.safetensors")));
  CHECK(checkpoint.ballast_tensors == 4);
  CHECK(checkpoint.other_tensors == 0);

  Header broken(*demo);
  broken.erase_if([](const TensorInfo& t) {
    return t.name == "model.diffusion_model.out.0.bias" || t.name.starts_with("first_stage_model.decoder.conv_in.");
  });
  broken.add("stranger", {4});
  const auto damaged = describe(*broken.take());
  CHECK(damaged.parts[1].missing == std::vector<std::string>{"model.diffusion_model.out.0.bias [64]"});
  CHECK(!damaged.parts[2].problem.empty());
  CHECK(damaged.other_tensors == 1);
  CHECK(damaged.other_bytes == 16);
  CHECK(describe(TensorFile{}).architecture == "unknown");
  CHECK(describe(*open(golden("clip_text/clip_l_hf/weights.safetensors"))).architecture == "parts of Stable Diffusion 1.x");
}

}  // namespace sluice::testing
