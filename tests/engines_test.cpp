// Several engines, models that cannot be loaded, files that change under an engine, weights that overflow.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "io/convert.h"
#include "io/tensor_file.h"
#include "io/tensor_writer.h"
#include "io/test_folder.h"
#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;
namespace fs = std::filesystem;

namespace {

EngineOptions on(const char* device, const std::string& model = kDemoModel) {
  auto options = engine_on(device);
  options.model = model;
  return options;
}

std::vector<float> latent_of(Engine& engine) {
  auto made = engine.generate(one_step(), {}, {});
  REQUIRE_MESSAGE(made, made.error().message);
  return made->pictures[0].latent;
}

enum class Change { overflow, leave_out };

// The demo model without one tensor, or with one scaled (as f32) until its largest value is just below the largest f32: finite,
// but no sum of its products is.
Status write_changed_model(const std::string& path, const std::string& tensor, Change change) {
  SLUICE_ASSIGN(const auto file, open_tensor_file(kDemoModel, *system_files()));
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  data.reserve(file->tensors.size());
  bool found = false;
  for (const auto& info : file->tensors) {
    const bool this_one = info.name == tensor;
    found |= this_one;
    if (this_one && change == Change::leave_out) continue;
    std::vector<std::byte> raw(info.size);
    SLUICE_TRY(read_tensor(*file, info, raw));
    DType dtype = info.dtype;
    if (this_one) {
      std::vector<float> wide(static_cast<std::size_t>(info.elements()));
      SLUICE_TRY(convert(info, raw, info.elements(), GGML_TYPE_F32, std::as_writable_bytes(std::span(wide))));
      float most = 0;
      for (const float x : wide) most = std::max(most, std::fabs(x));
      for (float& x : wide) x = x / most * 3e38f;
      raw.resize(wide.size() * sizeof(float));
      std::memcpy(raw.data(), wide.data(), raw.size());
      dtype = DType::f32;
    }
    data.push_back(std::move(raw));
    tensors.push_back({info.name, dtype, info.shape, data.back()});
  }
  if (!found) return fail(Code::not_found, tensor);
  return write_safetensors(path, tensors, file->metadata);
}

}  // namespace

// A black picture, from half-precision overflow, is written without a word.
TEST_CASE("a weight that overflows: an error that names the stage, and no picture") {
  const Folder folder;
  struct Case {
    const char *tensor, *stage;
  };
  for (const Case c :
       {Case{"cond_stage_model.transformer.text_model.final_layer_norm.weight", "encode"},
        Case{"model.diffusion_model.input_blocks.0.0.weight", "denoise"}, Case{"model.diffusion_model.out.2.weight", "denoise"},
        Case{"first_stage_model.decoder.conv_in.weight", "decode"},
        Case{"first_stage_model.decoder.conv_out.weight", "decode"}}) {
    CAPTURE(std::string(c.tensor));
    const std::string path = folder / "overflow.safetensors";
    REQUIRE(write_changed_model(path, c.tensor, Change::overflow));
    for (const char* load : {"mapped", "read"}) {
      EngineOptions options = on("sim:threads=1", path);
      options.tier = load[0] == 'm' ? Tier::mapped : Tier::read;
      auto engine = Engine::open(options);
      REQUIRE_MESSAGE(engine, engine.error().message);
      auto made = (*engine)->generate(one_step(), {}, {});
      REQUIRE_FALSE(made);
      CHECK(made.error().code == Code::device_failed);
      CHECK_MESSAGE(made.error().message.find(std::string(c.stage) + ": the result is not finite") != std::string::npos,
                    made.error().message);
    }
  }
}

// A failed load leaves things half set up.
TEST_CASE("a model that cannot be loaded leaves an open engine and the books of the device alone") {
  const Folder folder;
  const std::string missing = folder / "missing.safetensors", cut = folder / "cut.safetensors",
                    text = folder / "text.safetensors";
  REQUIRE(write_changed_model(missing, "model.diffusion_model.out.2.weight", Change::leave_out));
  auto bytes = slurp(kDemoModel);
  bytes.resize(bytes.size() / 2);
  spill(cut, bytes);
  std::ofstream(text) << "no model at all";
  for (const char* device : {"sim:threads=1", "cpu:threads=1"}) {
    CAPTURE(device);
    auto good = Engine::open(on(device));
    REQUIRE(good);
    const auto want = latent_of(**good);
    auto books = open_device("cpu:threads=1");  // shares the host's ledger
    REQUIRE(books);
    const Bytes before = (*books)->ledger().report().total;
    for (const std::string& bad : {missing, cut, text, folder / "absent"}) {
      CAPTURE(bad);
      auto engine = Engine::open(on(device, bad));
      REQUIRE_FALSE(engine);
      CHECK_FALSE(engine.error().message.empty());
      CHECK((*books)->ledger().report().total == before);
      CHECK(latent_of(**good) == want);
    }
    CHECK_FALSE(Engine::open(on("no such device")));
    CHECK(latent_of(**good) == want);
  }
}

TEST_CASE("two engines on two simulated devices, at work at once: each its own picture") {
  auto one = Engine::open(on("sim:threads=1")), two = Engine::open(on("sim:threads=1,memory=24MiB"));
  REQUIRE(one);
  REQUIRE(two);
  const auto want = latent_of(**one);
  std::vector<float> got[2];
  {
    std::thread other([&] {
      auto made = (*two)->generate(one_step(), {}, {});
      if (made) got[1] = made->pictures[0].latent;
    });
    auto made = (*one)->generate(one_step(), {}, {});
    if (made) got[0] = made->pictures[0].latent;
    other.join();
  }
  CHECK(got[0] == want);
  CHECK(got[1] == want);
}

// Two engines on one device share its ledger, not their budgets.
TEST_CASE("two engines on the host's memory: each keeps its own budget, whatever the other's, in any order and at once") {
  Bytes smallest = 0, full = 0;
  {
    auto engine = Engine::open(on("cpu:threads=1"));
    REQUIRE(engine);
    auto plan = (*engine)->plan(one_step());
    REQUIRE(plan);
    smallest = plan->smallest;
    full = plan->full;
  }
  REQUIRE(smallest < full);
  auto books = open_device("cpu:threads=1");
  REQUIRE(books);
  const auto before = (*books)->ledger().report();
  {
    const auto with_budget = [&](Bytes budget) {
      EngineOptions options = on("cpu:threads=1");
      options.device_budget = {Budget::Kind::bytes, budget};
      auto engine = Engine::open(options);
      REQUIRE(engine);
      return std::move(*engine);
    };
    auto large = with_budget(full);
    std::vector<float> want;
    {
      auto small = with_budget(smallest);  // opened last, and gone again
      want = latent_of(*large);
      CHECK(latent_of(*small) == want);
      const auto both = (*books)->ledger().report();
      CHECK(both.limit == smallest + full);
      CHECK(both.total + both.backend <= smallest + full);

      std::vector<float> got[2];
      std::thread other([&] {
        for (int i = 0; i < 3; ++i)
          if (auto made = small->generate(one_step(), {}, {})) got[1] = made->pictures[0].latent;
      });
      for (int i = 0; i < 3; ++i)
        if (auto made = large->generate(one_step(), {}, {})) got[0] = made->pictures[0].latent;
      other.join();
      CHECK(got[0] == want);
      CHECK(got[1] == want);

      auto refused = with_budget(smallest - 1)->generate(one_step(), {}, {});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == Code::over_budget);
      CHECK(refused.error().needed == smallest);
    }
    CHECK((*books)->ledger().report().limit == full);
    Request wide = one_step();
    wide.prompt += " on a table";
    wide.batch = 2;
    auto made = large->generate(wide, {}, {});  // a new plan, within its own budget
    if (!made) CHECK_MESSAGE(made.error().needed > full, made.error().message);
    CHECK(latent_of(*large) == want);
  }
  const auto after = (*books)->ledger().report();
  CHECK(after.total == before.total);
  CHECK(after.backend == before.backend);
}

// The model's file is replaced or cut between jobs: bytes of two files in one picture, or a bus error.
TEST_CASE("a file that changed under an engine: an io error that says to load it again; restored, the engine goes on") {
  const Folder folder;
  const std::string path = folder / "model.safetensors", aside = folder / "aside";
  for (const Tier tier : {Tier::mapped, Tier::read, Tier::disk}) {
    CAPTURE(static_cast<int>(tier));
    fs::copy_file(kDemoModel, path, fs::copy_options::overwrite_existing);
    EngineOptions options = on("sim:threads=1,memory=24MiB", path);
    options.tier = tier;
    auto engine = Engine::open(options);
    REQUIRE(engine);
    const auto want = latent_of(**engine);
    const auto refused = [&](const char* says) {
      auto made = (*engine)->generate(one_step(), {}, {});
      REQUIRE_FALSE(made);
      CHECK(made.error().code == Code::io);
      CHECK_MESSAGE(made.error().message.find(says) != std::string::npos, made.error().message);
      CHECK(made.error().message.find(path) != std::string::npos);
    };
    // Another file takes the path, then the first comes back.
    fs::rename(path, aside);
    refused("when it was opened");
    fs::copy_file(kDemoModel, path);
    refused("load it again");
    fs::rename(aside, path);
    CHECK(latent_of(**engine) == want);
    // Cut short: the engine stays refused, a new one on the restored file works.
    const auto size = fs::file_size(path);
    fs::resize_file(path, size / 2);
    refused("load it again");
    CHECK_FALSE(Engine::open(on("sim:threads=1", path)));
    fs::remove(path);
    fs::copy_file(kDemoModel, path);
    refused("load it again");
    auto again = Engine::open(options);
    REQUIRE(again);
    CHECK(latent_of(**again) == want);
  }
}
