#include "pipeline/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sluice {
namespace {

Result<int> check_side(const char* name, int asked, int native, int multiple) {
  if (asked == 0) return native;
  if (asked > 0 && asked <= kLargestSide && asked % multiple == 0) return asked;
  const int most = kLargestSide / multiple * multiple;
  const int below = std::clamp(asked / multiple * multiple, multiple, most);
  const int above = std::clamp(below + multiple, multiple, most);
  return fail(
      Code::invalid_argument,
      asked > 0 && asked < most && below != above
          ? fmt::format("{} {} is no multiple of {}: use {} or {}", name, asked, multiple, below, above)
          : fmt::format("{} {} is out of range: use a multiple of {} from {} to {}", name, asked, multiple, multiple, most));
}

}  // namespace

Result<Settings> check_request(const Request& request, const PictureRule& rule) {
  Settings s;
  s.request = request;
  SLUICE_ASSIGN(s.request.width, check_side("width", request.width, rule.native_width, rule.multiple()));
  SLUICE_ASSIGN(s.request.height, check_side("height", request.height, rule.native_height, rule.multiple()));
  if (request.steps < 1 || request.steps > 1000)
    return fail(Code::invalid_argument, fmt::format("steps {} is out of range: use 1 to 1000", request.steps));
  if (request.batch < 1 || request.batch > kLargestBatch)
    return fail(Code::invalid_argument, fmt::format("batch {} is out of range: use 1 to {}", request.batch, kLargestBatch));
  if (request.clip_skip < 1 || request.clip_skip > 2)
    return fail(Code::invalid_argument,
                fmt::format("clip skip {} is out of range: use 1 (last layer) or 2 (the one before)", request.clip_skip));
  if (request.seed < -1)
    return fail(Code::invalid_argument,
                fmt::format("seed {} is out of range: use 0 or more, or -1 for a random one", request.seed));
  SLUICE_ASSIGN(s.sampler, parse_sampler(request.sampler));
  SLUICE_ASSIGN(s.schedule, parse_schedule(request.schedule));
  SLUICE_ASSIGN(s.rng, parse_random(request.rng));
  SLUICE_ASSIGN(s.emphasis, parse_emphasis(request.emphasis));
  SLUICE_ASSIGN(s.passes, guidance_passes(request.cfg_scale));
  if (request.seed == -1) s.request.seed = static_cast<std::int64_t>(std::random_device{}() & 0x7fffffffu);
  s.latent_width = s.request.width / rule.factor;
  s.latent_height = s.request.height / rule.factor;
  s.latent_channels = rule.latent_channels;
  return s;
}

}  // namespace sluice
