#include "bench/micro.h"

#include <benchmark/benchmark.h>

#include <filesystem>
#include <random>
#include <thread>

#include "device/arena.h"
#include "exec/pack.h"
#include "exec/plan.h"
#include "ggml-cpp.h"
#include "io/tensor_file.h"
#include "io/tensor_writer.h"
#include "residency/weight_store.h"
#include "text/clip_tokenizer.h"

namespace sluice::bench {
namespace {

StageCost equal_blocks(int count) {
  StageCost stage;
  for (int i = 0; i < count; ++i) stage.blocks.push_back({.weights = 340 * MiB, .workspace = 400 * MiB, .compute_s = 0.02});
  stage.sweeps = 20;
  return stage;
}

void plan_60_blocks(benchmark::State& state) {
  const auto stage = equal_blocks(60);
  const Bytes budget = smallest_transient(stage) + static_cast<Bytes>(state.range(0)) * GiB;
  for (auto _ : state) benchmark::DoNotOptimize(plan_stage(stage, budget));
}
BENCHMARK(plan_60_blocks)->Arg(0)->Arg(5)->Arg(10)->Arg(20)->Unit(benchmark::kMillisecond);

void pack_extents_random(benchmark::State& state) {
  std::mt19937 random(1);
  std::vector<Extent> extents;
  const int period = 120;
  for (int i = 0; i < state.range(0); ++i) {
    const int from = static_cast<int>(random() % period);
    extents.push_back({random() % (64 * MiB), from, static_cast<int>((from + static_cast<int>(random() % 8)) % period)});
  }
  for (auto _ : state) benchmark::DoNotOptimize(pack_extents(extents, period, 256, GiB));
}
BENCHMARK(pack_extents_random)->Arg(32)->Arg(256)->Unit(benchmark::kMicrosecond);

void tokenize(benchmark::State& state) {
  const auto& tokenizer = ClipTokenizer::standard();
  for (auto _ : state)
    benchmark::DoNotOptimize(
        tokenizer.encode("a very long prompt about mountains, rivers and castles, oil painting, highly detailed"));
}
BENCHMARK(tokenize)->Unit(benchmark::kMicrosecond);

void open_header(benchmark::State& state) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors";
  for (auto _ : state) {
    auto file = open_tensor_file(path, *system_files());
    if (!file) state.SkipWithError(file.error().message.c_str());
    benchmark::DoNotOptimize(file);
  }
}
BENCHMARK(open_header)->Unit(benchmark::kMicrosecond);

void copy_into_slot(benchmark::State& state) {
  const auto size = static_cast<Bytes>(state.range(0));
  auto device = open_device("cpu:threads=1");
  if (!device) return state.SkipWithError(device.error().message.c_str());
  auto arena = Arena::open(**device, size);
  if (!arena) return state.SkipWithError(arena.error().message.c_str());
  const ggml_context_ptr context(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
  auto* slot = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(size));
  if (const auto bound = arena->bind(slot, 0); !bound) return state.SkipWithError(bound.error().message.c_str());
  const std::vector<std::byte> data(size);
  for (auto _ : state) {
    if (!(*device)->set(slot, 0, data, 0, CancelToken{})) state.SkipWithError("the copy failed");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(copy_into_slot)->Arg(1 << 20)->Arg(16 << 20)->Unit(benchmark::kMicrosecond);

/// 32 blocks of 8 MiB, made into kept images by one or two reading threads. range(1): whether the file is in the page cache.
void load_images(benchmark::State& state) {
  constexpr std::uint32_t kBlocks = 32;
  constexpr Bytes kBlock = 8 * MiB;
  const auto threads = static_cast<std::uint32_t>(state.range(0));
  const bool cached = state.range(1) != 0;
  const auto path = (std::filesystem::temp_directory_path() / "sluice-load-bench.safetensors").string();
  const std::vector<std::byte> data(kBlock, std::byte{1});
  std::vector<TensorToWrite> tensors;
  Model model;
  for (std::uint32_t b = 0; b < kBlocks; ++b) {
    const std::string name = "t" + std::to_string(b);
    const std::vector<std::int64_t> shape = {1024, static_cast<std::int64_t>(kBlock / 2048)};
    tensors.push_back({name, DType::f16, shape, data});
    model.blocks.push_back({.name = name, .weights = {{name, shape, WeightRole::matrix}}});
  }
  if (const auto written = write_safetensors(path, tensors, {}, 64); !written)
    return state.SkipWithError(written.error().message.c_str());
  auto file = open_tensor_file(path, *system_files());
  auto device = open_device("sim:threads=1");
  if (!file || !device) return state.SkipWithError("no file or no device");
  ComponentSpec spec{"load", &model, {}};
  for (std::uint32_t b = 0; b < kBlocks; ++b) spec.sources.push_back({{*file, (*file)->index.at("t" + std::to_string(b))}});
  WeightStore store(**device, {.tier = HostTier::read});
  const auto id = store.add(spec);
  if (!id) return state.SkipWithError(id.error().message.c_str());
  const auto hold = [&] { return store.hold(*id); };
  std::vector<std::byte> away(kBlock);
  for (auto _ : state) {
    state.PauseTiming();
    store.demote_idle();
    for (std::uint32_t b = 0; b < kBlocks && !cached; ++b)
      static_cast<void>((*file)->file->read_at_uncached((*file)->tensors[b].offset, away));
    state.ResumeTiming();
    const auto held = hold();
    std::vector<std::jthread> readers;
    for (std::uint32_t t = 0; t < threads; ++t)
      readers.emplace_back([&, t] {
        for (std::uint32_t b = t; b < kBlocks; b += threads) benchmark::DoNotOptimize(store.fetch({*id, b}, {}, CancelToken{}));
      });
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(kBlocks * kBlock));
  std::filesystem::remove(path);
}
BENCHMARK(load_images)->ArgsProduct({{1, 2}, {0, 1}})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

int run_micro(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace sluice::bench
