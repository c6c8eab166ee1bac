#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/log.h"
#include "base/result.h"
#include "sluice/devices.h"

namespace sluice {

/// How much of a device may be used. "unlimited" is a kind of its own, not a number.
struct Budget {
  enum class Kind {
    automatic,   ///< what is free now, less the reserve; follows the device from request to request
    bytes,       ///< at most `value`
    leave_free,  ///< all but `value`
  };
  Kind kind = Kind::automatic;
  Bytes value = 0;
  /// "6GiB", "-1GiB" (leave one free), "auto". Errors: invalid_argument.
  static Result<Budget> parse(const std::string& text);
};

/// Where the model's bytes wait while they are not on the device.
enum class Tier {
  automatic,  ///< mapped
  mapped,     ///< the file is mapped and images are put together from it
  read,       ///< images are read once and kept in host memory
  disk,       ///< nothing is kept: each use reads the file
};

/// When the host's copies of weights are made.
enum class Load {
  automatic,  ///< lazy
  eager,      ///< when the model is opened: kept images are made (Tier::read), mappings read ahead (Tier::mapped)
  lazy,       ///< at first use
};

/// What a session runs. A model path is enough.
struct ModelOptions {
  std::string model;   ///< path of a checkpoint
  std::string vae;     ///< a file whose autoencoder takes the checkpoint's place; empty: none
  std::string clip_l;  ///< a file whose text encoder takes the checkpoint's place; empty: none
  Load load = Load::automatic;
  bool prefetch = true;                ///< false: at most one streamed block holds memory, copies and compute take turns
  std::string policy = "interleaved";  ///< or "first-k", "all-streamed", "all-resident": for comparison
  /// Which of the engine's devices a component ("text", "denoiser", "vae") runs on: a name, or several joined by '+', over
  /// which its blocks are spread. What is not named is spread over all.
  std::map<std::string, std::string> place;
  /// How several devices share a model: "blocks" (each runs some of them) or "rows" (the first runs all blocks; rows of large
  /// weights lie on the others too, where their backend can, and stay there as long as the model is open).
  std::string split = "blocks";
};

/// Options of an engine, and of the model it opens with. Everything has a default: a model path is enough.
struct EngineOptions : ModelOptions {
  /// "auto" (a card before the CPU), "cpu", "cpu:threads=2", "sim:memory=24MiB,…" (docs/simulated-device.md), a GPU's name from
  /// `devices()`; or several, "vulkan0,cpu", over which blocks are spread in this order.
  std::string device = "auto";
  std::optional<int> threads;  ///< compute threads of the CPU device; none: as many as the process may run on
  Budget device_budget;        ///< this engine's bytes of the first device, backend account included; others have their own
  std::map<std::string, Budget> device_budgets;  ///< by device name ("vulkan0", "sim:a"); takes the place of device_budget
  std::optional<Bytes> host_budget;              ///< bytes of host memory for kept images and staging; none: unlimited
  std::optional<Bytes> pinned_budget;            ///< how much of those may be pinned; none: half of the host's memory
  std::string
      cache_folder;  ///< where `devices` keeps what it measured; plans go by it. Empty: rates are measured at every start
  Bytes reserve = 256 * MiB;  ///< left free when the budget is automatic; at most an eighth of the device
  Tier tier = Tier::automatic;
  std::optional<double> idle_unload_s;  ///< after so many seconds without a request the device is given back, after as many
                                        ///< again what is kept in host memory; none: never
  LogSink log;
};

/// What to draw. Zero or empty means the model's default.
struct Request {
  std::string prompt;
  std::string negative_prompt;
  int width = 0, height = 0;  ///< pixels; multiples of the model's rule, else an error naming the nearest valid sizes
  int steps = 20;
  float cfg_scale = 7.0f;  ///< 1: the negative prompt is not evaluated; 0: unconditional
  std::string sampler = "euler";
  std::string schedule = "discrete";
  std::string rng = "cuda";  ///< "cuda" (Philox) or "cpu" (torch's CPU generator)
  std::int64_t seed = -1;    ///< −1: one is chosen and reported; picture i of a batch is the picture of seed + i
  int batch = 1;
  int clip_skip = 1;              ///< 1: last layer, 2: the one before
  std::string emphasis = "mean";  ///< "mean": mean restored after weighting; "none": weights alone
};

/// What happens now. Called from the thread that called `generate`, at block ends at most.
struct Progress {
  std::string stage;                ///< "encode", "denoise", "decode"
  int done = 0, total = 0;          ///< steps (denoise) or blocks
  double fraction = 0;              ///< of the whole request's expected time that is done, 0…1
  double elapsed_s = 0, eta_s = 0;  ///< of the whole request; eta 0 while unknown
  double link_bytes_per_s = 0;      ///< of late
};
using ProgressFunction = std::function<void(const Progress&)>;

/// Where one block lives in a stage's plan.
struct BlockPlace {
  std::string name;
  Bytes weights = 0;
  std::string place;   ///< "resident", "streamed", "mapped", "none" (no weights)
  std::string why;     ///< a few words
  std::string device;  ///< that it runs on
};

/// A stage's plan, for people and scripts. Where its blocks are on several devices, bytes are sums over them and times those of
/// the slowest.
struct StageReport {
  std::string name;  ///< "encode", "denoise", "decode"
  std::string component;
  int lanes = 1, sweeps = 1;
  Bytes weights = 0;                          ///< all its blocks
  Bytes resident = 0;                         ///< of those, kept on the device
  Bytes slots = 0, state = 0, workspace = 0;  ///< peaks of each kind on its own
  Bytes transient = 0;                        ///< slots, state and workspace packed together
  Bytes bytes_per_sweep = 0;                  ///< over the link, steady
  int in_flight = 1;                          ///< streamed blocks holding memory at once
  double step_s = 0;                          ///< predicted steady sweep
  double roofline_s = 0;
  Bytes lower_bound = 0;  ///< max over blocks of weights + workspace + live state, from the declarations
  std::vector<BlockPlace> blocks;
};

/// What a request's plan asks of one device.
struct DevicePlan {
  std::string device;
  bool known = false;         ///< whether the device's own report can be believed
  Bytes free = 0, total = 0;  ///< as reported now, clamped
  Bytes budget = 0;           ///< bytes allowed, backend included; 0 with `unlimited`
  bool unlimited = false;
  Bytes backend = 0, planned = 0, smallest = 0, full = 0;  ///< as in PlanReport
};

/// A whole request's plan. The single figures are those of the device where most of the time is spent.
struct PlanReport {
  std::vector<DevicePlan> devices;  ///< those that the request uses
  std::string device;
  bool device_known = false;                ///< whether the device's own report can be believed
  Bytes device_free = 0, device_total = 0;  ///< as reported now, clamped
  Bytes budget = 0;                         ///< bytes allowed, backend included; 0 with `unlimited`
  bool unlimited = false;
  Bytes backend = 0;      ///< the backend's own account, inside the budget
  Bytes planned = 0;      ///< arena + backend: what will be taken
  Bytes smallest = 0;     ///< smallest budget that works, to the byte; every larger one works too
  Bytes full = 0;         ///< budget from which nothing moves in a second request
  Bytes model_bytes = 0;  ///< all components' device images
  int width = 0, height = 0;
  std::vector<StageReport> stages;
};

/// What a stage really did.
struct StageRun {
  std::string name;
  int sweeps = 0;
  double seconds = 0;       ///< device clock (virtual on the simulated device)
  double step_s = 0;        ///< median sweep after the first
  double wait_s = 0;        ///< compute waiting for copies, all sweeps
  Bytes copied = 0;         ///< over the link, all sweeps
  Bytes copied_steady = 0;  ///< by the last sweep
  int plans_built = 0;      ///< 0 when the plan came from the cache
};

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;  ///< 3 × width × height, rows from the top
  std::vector<float> latent;      ///< [W, H, C] f32, as the sampler left it
  std::int64_t seed = 0;
  std::string parameters;  ///< the customary text for PNG files
};

struct Generated {
  std::vector<Picture> pictures;
  PlanReport plan;
  std::vector<StageRun> runs;
  /// Highest leased + backend bytes on a device, and its limit (0: none).
  struct Peak {
    std::string device;
    Bytes bytes = 0, limit = 0;
  };
  std::vector<Peak> peaks;  ///< of the devices in plan.devices, in that order
  Bytes ledger_peak = 0;    ///< of plan.device
  Bytes device_limit = 0;
  Bytes bytes_read = 0;                        ///< from files by this request
  std::uint64_t evictions = 0, demotions = 0;  ///< blocks that left the device for it, with and without a host copy
  Bytes given_up = 0;                          ///< bytes of them
  int plans_built = 0;                         ///< 0 when the plan was at hand
  double seconds = 0;                          ///< wall clock
};

/// One model on an engine, with plans, workspaces and caches of its own. When it goes, every byte that only it used goes too.
/// Threads: one request at a time; several sessions of an engine may be asked from several threads and take turns.
class ModelSession {
 public:
  virtual ~ModelSession() = default;

  /// The plan `generate` would follow. Errors: over_budget (needed = smallest budget), invalid_argument.
  virtual Result<PlanReport> plan(const Request& request) = 0;
  /// A picture, or a refusal before step 1. After any error the ledger is as it was and the session can be used again.
  virtual Result<Generated> generate(const Request& request, const ProgressFunction& progress, const CancelToken& cancel) = 0;
};

/// What is taken of a device now.
struct DeviceUse {
  std::string device;
  std::optional<Bytes> budget;               ///< none: unlimited
  Bytes zone = 0, residents = 0;             ///< workspace of whichever stage runs; blocks kept
  Bytes mapped = 0, backend = 0;             ///< weights used in place; the backend's own
  Bytes host_pageable = 0, host_pinned = 0;  ///< images, staging and caches in host memory
};

/// One or several devices and everything that shares them. Opens with a model, or without.
class Engine : public ModelSession {
 public:
  /// Reads headers and registers the components; no weights move yet (but with Load::eager). All or nothing.
  /// Errors: those of the file (not_found, corrupt, unsupported), of the device, invalid_argument.
  static Result<std::unique_ptr<Engine>> open(EngineOptions options);

  /// Another model beside those that are there. It may outlive the engine. Errors: as open.
  virtual Result<std::unique_ptr<ModelSession>> add(const ModelOptions& options) = 0;
  /// Applies from the next request on, and between two steps of one that runs.
  /// `device`: its name; empty: the first. Errors: invalid_argument.
  virtual Status set_budget(const Budget& budget, const std::string& device = {}) = 0;
  /// Gives up everything that can be brought back: device copies and workspaces, and with `host` what is kept in host memory.
  /// Waits for a request that runs.
  virtual void unload(bool host) = 0;
  /// Of the first device.
  virtual DeviceUse use() const = 0;
  /// Of each device, in the order in which they were given.
  virtual std::vector<DeviceUse> uses() const = 0;
};

/// One component of a file, for `sluice inspect`.
struct ComponentSummary {
  std::string name;
  std::string architecture;
  std::vector<std::pair<std::string, std::string>> dims;  ///< e.g. {"channels", "320, 640, 1280, 1280"}
  std::vector<std::pair<std::string, Bytes>> dtypes;      ///< file bytes by stored type
  std::size_t tensors = 0;
  Bytes bytes = 0;
  std::vector<std::string> missing;  ///< weights the architecture needs and the file lacks
};
struct FileSummary {
  std::string path, format;
  Bytes bytes = 0;
  std::string architecture;  ///< "stable-diffusion-v1", or "unknown"
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<ComponentSummary> components;
  std::vector<std::string> ignored, unused, warnings;
};
/// Reads a file's header only. Errors: not_found, io, corrupt.
Result<FileSummary> inspect(const std::string& path);

/// Writes a picture as PNG with its parameters, atomically. Errors: io.
Status write_picture(const std::string& path, const Picture& picture);

}  // namespace sluice
