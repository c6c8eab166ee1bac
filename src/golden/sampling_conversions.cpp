#include <fmt/format.h>

#include <charconv>

#include "golden/array.h"
#include "golden/runner.h"
#include "sampling/noise_table.h"
#include "sampling/parametrisation.h"

namespace sluice::golden {
namespace {

template <typename Map>
std::vector<float> mapped(const std::vector<float>& in, Map map) {
  std::vector<float> out;
  for (const float v : in) out.push_back(static_cast<float>(map(static_cast<double>(v))));
  return out;
}

std::vector<float> narrowed(std::span<const double> in) { return {in.begin(), in.end()}; }

/// The outputs are a bare name or name.number, where the number (a sigma) may hold a dot of its own.
Result<std::vector<float>> compute(const std::string& output, const TensorFile& io) {
  const auto& table = NoiseTable::stable_diffusion();
  const auto name = output.substr(0, output.find('.'));
  const auto text = output.size() > name.size() ? output.substr(name.size() + 1) : std::string{};
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  if (name == "table_sigma") return narrowed(table.sigmas());
  if (name == "table_alphas_cumprod") return narrowed(table.alphas_cumprod());
  SLUICE_ASSIGN(const auto t, read_array(io, "t"));
  SLUICE_ASSIGN(const auto sigma, read_array(io, "sigma"));
  if (name == "t_to_sigma") return mapped(t.values, [&](double v) { return table.t_to_sigma(v); });
  if (name == "sigma_to_t") return mapped(sigma.values, [&](double v) { return table.sigma_to_t(v); });
  if (name == "timestep_embedding") {
    const auto dim = static_cast<std::size_t>(value);
    std::vector<float> out;
    for (const double at : {0.0, 1.0, 17.25, 500.0, 999.0}) {
      out.resize(out.size() + dim);
      timestep_embedding(at, std::span(out).last(dim));
    }
    return out;
  }
  SLUICE_ASSIGN(const auto x, read_array(io, "x"));
  SLUICE_ASSIGN(const auto net, read_array(io, "net_out"));
  std::vector<float> out(x.values.size());
  if (name == "scaled_input")
    scale_input(x.values, value, out);
  else if (name == "denoised_eps")
    to_denoised(Prediction::eps, x.values, net.values, value, out);
  else if (name == "denoised_v")
    to_denoised(Prediction::v, x.values, net.values, value, out);
  else
    return fail(Code::unsupported, fmt::format("no conversion {}", name));
  return out;
}

}  // namespace

Result<std::vector<Measured>> run_conversions(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("outputs").items()) {
    const auto got = compute(entry.key(), *io);
    out.push_back(got ? measure(*io, entry.key(), *got, tolerance(Work::sampling, "f32", "host"))
                      : unknown(entry.key(), got.error().message));
  }
  return out;
}

}  // namespace sluice::golden
