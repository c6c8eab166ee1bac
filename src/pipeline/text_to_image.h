#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/wall_clock.h"
#include "exec/session.h"
#include "pipeline/loaded_model.h"
#include "pipeline/run_stage.h"
#include "pipeline/settings.h"
#include "text/chunks.h"

namespace sluice {

/// What may be watched while a picture is made; for tests and the golden runner. Empty functions are skipped.
struct Watch {
  std::function<void(std::span<const float> cond, std::span<const float> uncond)>
      context;  ///< [hidden, tokens] each; uncond may be empty
  std::function<void(int image, int step, std::span<const float> cond, std::span<const float> uncond)>
      outputs;                                                                   ///< network outputs
  std::function<void(int image, int step, std::span<const float> latent)> step;  ///< after it
  std::function<void(int image, std::span<const float> pixels)> decoded;         ///< [W, H, 3], not clamped
};

/// A request's latents and pixels.
struct Drawn {
  std::vector<std::vector<float>> latents;  ///< [image], [W, H, C]
  std::vector<std::vector<float>> pixels;   ///< [image], [W, H, 3] nominally −1…1
  std::vector<StageRun> runs;
};

/// Text to picture as three stages over one session: encode, denoise, decode. Stateless between requests but for the session's
/// plans and residents. Threads: one.
class TextToImage {
 public:
  TextToImage(LoadedModel& model, WeightStore& store, Session& session) : model_(model), store_(store), session_(session) {}

  /// The stages of a request: lanes and shapes. Host arithmetic only.
  Result<std::vector<StageSpec>> stages(const Settings& settings) const;
  /// Makes the pictures. Errors: invalid_argument (start noise of another size) and over_budget before anything is allocated;
  /// device_failed, io, cancelled later.
  Result<Drawn> draw(const Settings& settings, const ProgressFunction& progress, const CancelToken& cancel,
                     const Watch& watch = {});

 private:
  struct Tokens {
    TokenChunks cond, uncond;  ///< uncond has no rows when no pass needs it, and the other way round
  };
  Tokens tokens(const Settings& settings) const;
  struct Context {
    std::vector<float> cond, uncond;
  };
  /// What the text encoder said of these prompts in this session before, or nothing.
  std::optional<Context> remembered(const Settings& settings);
  void remember(const Settings& settings, const Context& context);
  Result<Context> encode(Prepared& prepared, const Settings& settings, const CancelToken& cancel, StageRun& run);
  /// `prepared` is another plan afterwards where the budget changed in between.
  Status denoise(Prepared*& prepared, const Settings& settings, const Context& context, const Watch& watch,
                 const CancelToken& cancel, Drawn& drawn, StageRun& run);
  Status decode(Prepared& prepared, const Watch& watch, const CancelToken& cancel, Drawn& drawn, StageRun& run);
  /// `part`: how much of the stage is done, 0…1.
  void report(std::size_t stage, int done, int total, double part, const SweepRunner* runner);

  LoadedModel& model_;
  WeightStore& store_;
  Session& session_;
  ProgressFunction progress_;
  Stopwatch clock_;
  std::vector<double> share_;  ///< of each stage in the request's predicted compute time
  Bytes seen_copied_ = 0;      ///< over the link, when the rate was last taken
  double seen_at_s_ = 0, link_rate_ = 0;
};

}  // namespace sluice
