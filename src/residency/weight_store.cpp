#include "residency/weight_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <mutex>
#include <set>
#include <tuple>

#include "residency/host_images.h"
#include "residency/image_reader.h"
#include "residency/mapped_file.h"

namespace sluice {
namespace {

/// One registration. Fixed once it is in the store, but for what its members guard themselves and `bound`.
struct Component {
  std::string name;
  const Model* model = nullptr;
  std::vector<std::vector<WeightRecipe>> recipes;  // [block][weight]
  std::vector<BlockLayout> layouts;                // [block]
  std::vector<bool> mappable;                      // [block]
  Bytes weight_bytes = 0, file_bytes = 0;
  std::vector<std::shared_ptr<const File>> files;     // each once
  std::vector<std::shared_ptr<MappedFile>> mappings;  // parallel to `files`, HostTier::mapped only
  HostImages images;                                  // HostTier::read only
  std::map<std::uint32_t, Lease> bound;               // bookings of blocks used in place; the store's mutex guards them

  MappedFile& mapping_of(const WeightRecipe& recipe) const {
    const auto at = std::find(files.begin(), files.end(), recipe.file->file);
    return *mappings[static_cast<std::size_t>(at - files.begin())];
  }
};

/// Every weight's recipe, or one error for all that do not fit.
Result<std::vector<std::vector<WeightRecipe>>> resolve(const ComponentSpec& spec) {
  constexpr std::size_t kNamed = 5;
  const auto& blocks = spec.model->blocks;
  if (spec.sources.size() != blocks.size())
    return fail(Code::invalid_argument,
                fmt::format("{}: sources for {} blocks, the model has {}", spec.name, spec.sources.size(), blocks.size()));
  std::vector<std::vector<WeightRecipe>> recipes(blocks.size());
  std::vector<std::string> problems;
  std::size_t count = 0;
  Code code{};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (spec.sources[b].size() != blocks[b].weights.size())
      return fail(Code::invalid_argument, fmt::format("{}: block '{}' has {} weights and sources for {}", spec.name,
                                                      blocks[b].name, blocks[b].weights.size(), spec.sources[b].size()));
    for (std::size_t w = 0; w < blocks[b].weights.size(); ++w) {
      auto recipe = resolve_weight(blocks[b].weights[w], spec.sources[b][w]);
      if (recipe) {
        recipes[b].push_back(*std::move(recipe));
        continue;
      }
      if (count++ == 0) code = recipe.error().code;
      if (problems.size() < kNamed) problems.push_back(recipe.error().message);
    }
  }
  if (count == 0) return recipes;
  const std::string more = count > problems.size() ? fmt::format("; and {} more", count - problems.size()) : "";
  return fail(code, fmt::format("{}: {} {} not fit the file: {}{}", spec.name, count, count == 1 ? "weight does" : "weights do",
                                fmt::join(problems, "; "), more));
}

Bytes bytes_in_files(const std::vector<std::vector<WeightRecipe>>& recipes) {
  std::set<std::tuple<const File*, Bytes, Bytes, ggml_type>> seen;
  Bytes sum = 0;
  for (const auto& block : recipes)
    for (const auto& r : block)
      if (seen.insert({r.file->file.get(), r.begin, r.bytes, r.type}).second) sum += r.bytes;
  return sum;
}

}  // namespace

struct WeightStore::Impl {
  Impl(Device& d, Options o) : device(d), options(std::move(o)), host(options.host_budget) {}

  Device& device;
  const Options options;
  Ledger host;
  Scratch scratch;
  std::vector<Lease> scratch_leases;  // one for each time it grew
  std::atomic<Bytes> bytes_read{0}, fetched{0};

  mutable std::mutex mutex;  // guards what follows; never held while a file is read
  std::vector<std::shared_ptr<Component>> components;
  ResidentTable residents;

  std::shared_ptr<Component> find(ComponentId id) const {
    const std::lock_guard lock(mutex);
    assert(id < components.size() && components[id]);
    return components[id];
  }
  std::vector<std::shared_ptr<Component>> all() const {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Component>> present;
    for (const auto& c : components)
      if (c) present.push_back(c);
    return present;
  }

  bool in_place_device() const {
    // The simulated device's memory is its own by definition: it proves that nothing else is used.
    return options.tier == HostTier::mapped && device.info().host_memory && device.info().kind == DeviceKind::cpu;
  }

  bool block_mappable(const Component& c, std::size_t block) const {
    const BlockLayout& layout = c.layouts[block];
    if (!in_place_device() || layout.tensors.empty()) return false;
    for (std::size_t w = 0; w < layout.tensors.size(); ++w) {
      const WeightRecipe& recipe = c.recipes[block][w];
      const Bytes alignment = std::max<Bytes>(device.info().alignment, ggml_backend_buft_get_alignment(device.buffer_type()));
      if (!recipe.identity || !c.mapping_of(recipe).aligned(recipe.begin, alignment)) return false;
    }
    return true;
  }

  /// Mappings of the component's files; a file that another component has mapped already is shared.
  Status map_files(Component& c) const {
    for (const auto& file : c.files) {
      std::shared_ptr<MappedFile> mapping;
      for (const auto& other : all())
        for (const auto& m : other->mappings)
          if (m->file() == file.get()) mapping = m;
      if (!mapping) {
        SLUICE_ASSIGN(mapping, MappedFile::open(file));
      }
      c.mappings.push_back(std::move(mapping));
    }
    return {};
  }

  /// Makes the conversion buffer at least as large as the component wants it.
  Status grow_scratch(const Component& c) {
    Bytes size = 0;
    for (const auto& block : c.recipes) size = std::max(size, scratch_size(block));
    const Bytes present = scratch.size();
    if (size <= present) return {};
    SLUICE_ASSIGN(Lease lease, host.reserve(Use::staging, size - present));
    const std::lock_guard lock(scratch.mutex);
    scratch.bytes.resize(size);
    scratch_leases.push_back(std::move(lease));
    return {};
  }

  /// Takes bookings back, the last first, until the largest image of any component that is not kept fits beside those that are:
  /// it has to pass through. Components that are held have their staging already and keep what they have.
  void leave_room_for_staging(Component& added) {
    const std::lock_guard lock(mutex);
    std::vector<Component*> present;
    for (const auto& c : components)
      if (c) present.push_back(c.get());
    present.push_back(&added);
    const auto fits = [&] {
      Bytes largest = 0;
      for (const Component* c : present)
        for (std::size_t b = 0; b < c->layouts.size(); ++b)
          if (!c->images.booked(b)) largest = std::max(largest, c->layouts[b].size);
      const LedgerReport books = host.report();
      return !books.limit || books.total + books.backend + largest <= *books.limit;
    };
    const auto take_back_last = [&] {
      for (auto c = present.rbegin(); c != present.rend(); ++c) {
        const bool held = *c != &added && is_held(**c);
        for (std::size_t b = (*c)->layouts.size(); b-- > 0 && !held;) {
          if (!(*c)->images.booked(b)) continue;
          (*c)->images.renounce(b);
          return true;
        }
      }
      return false;
    };
    while (!fits() && take_back_last()) {
    }
  }

  /// Whether anybody but the store refers to the component. Under the mutex.
  bool is_held(const Component& c) const {
    return std::any_of(components.begin(), components.end(),
                       [&](const auto& shared) { return shared.get() == &c && shared.use_count() > 1; });
  }

  void book_images(Component& c) {
    std::vector<Bytes> sizes;
    for (const auto& layout : c.layouts) sizes.push_back(layout.size);
    c.images.book(host, sizes);
    leave_room_for_staging(c);
    const auto wanted = static_cast<std::size_t>(std::count_if(sizes.begin(), sizes.end(), [](Bytes s) { return s > 0; }));
    if (const std::size_t kept = c.images.booked_blocks(); kept < wanted)
      options.log(LogLevel::warning, "{}: the host budget keeps {} of {} blocks; the others are read from disk at each use",
                  c.name, kept, wanted);
  }

  Status fill(const Component& c, std::size_t block, std::span<std::byte> image, const CancelToken& cancel) {
    const BlockLayout& layout = c.layouts[block];
    const auto& recipes = c.recipes[block];
    if (options.tier != HostTier::mapped) {
      // A kept image is read once, and the page cache then helps the next start; a streamed one would push everything else out.
      const bool uncached = !c.images.booked(block);
      return read_image(recipes, layout, uncached, scratch, image, cancel, bytes_read);
    }
    std::vector<std::span<const std::byte>> files;
    for (const auto& recipe : recipes) files.push_back(c.mapping_of(recipe).bytes());
    SLUICE_TRY(copy_image(recipes, layout, files, image, cancel));
    // Where the budget is the host's memory, touched pages of a streamed block would count against it.
    if (device.info().host_memory)
      for (const ReadRun& run : plan_reads(recipes, layout, UINT64_MAX))
        c.mapping_of(recipes[run.weights.front()]).drop(run.begin, run.end - run.begin);
    return {};
  }

  /// Makes the kept image of a booked block, or says why not.
  Result<std::span<const std::byte>> fill_kept(Component& c, std::size_t block, const CancelToken& cancel) {
    const Bytes size = c.layouts[block].size;
    SLUICE_ASSIGN(auto buffer, device.allocate_host(size));
    SLUICE_TRY(fill(c, block, buffer->bytes().first(size), cancel));
    return c.images.keep(block, std::move(buffer));
  }
};

WeightStore::WeightStore(Device& device, Options options) : impl_(std::make_unique<Impl>(device, std::move(options))) {}
WeightStore::~WeightStore() = default;

Result<ComponentId> WeightStore::add(ComponentSpec spec) {
  if (!spec.model) return fail(Code::invalid_argument, spec.name + ": no model");
  for (const auto& other : impl_->all())
    if (other->name == spec.name)
      return fail(Code::invalid_argument, fmt::format("component '{}' is registered already", spec.name));
  auto component = std::make_shared<Component>();
  Component& c = *component;
  c.name = spec.name;
  c.model = spec.model;
  SLUICE_ASSIGN(c.recipes, resolve(spec));
  c.file_bytes = bytes_in_files(c.recipes);
  for (std::size_t b = 0; b < c.recipes.size(); ++b) {
    c.layouts.push_back(lay_out_block(spec.model->blocks[b], c.recipes[b], impl_->device));
    c.weight_bytes += c.layouts.back().size;
    for (const auto& recipe : c.recipes[b])
      if (std::find(c.files.begin(), c.files.end(), recipe.file->file) == c.files.end()) c.files.push_back(recipe.file->file);
  }
  const auto while_adding = [&](Status status) -> Status {
    if (!status) return fail_while(c.name, std::move(status).error());
    return {};
  };
  for (const auto& file : c.files) SLUICE_TRY(while_adding(file->unchanged()));
  if (impl_->options.tier == HostTier::mapped)
    SLUICE_TRY(while_adding(impl_->map_files(c)));
  else
    SLUICE_TRY(while_adding(impl_->grow_scratch(c)));
  if (impl_->options.tier == HostTier::read) impl_->book_images(c);
  for (std::size_t b = 0; b < c.layouts.size(); ++b) c.mappable.push_back(impl_->block_mappable(c, b));

  const std::lock_guard lock(impl_->mutex);
  impl_->components.push_back(std::move(component));
  return static_cast<ComponentId>(impl_->components.size() - 1);
}

Status WeightStore::remove(ComponentId component) {
  std::shared_ptr<Component> gone;  // goes after the lock: unmapping and freeing take time
  const std::lock_guard lock(impl_->mutex);
  assert(component < impl_->components.size() && impl_->components[component]);
  auto& place = impl_->components[component];
  // Holds and running fetches share the component; new ones cannot appear while the mutex is held.
  if (place.use_count() > 1)
    return fail(Code::invalid_argument, fmt::format("component '{}' is in use: end its sessions first", place->name));
  impl_->residents.erase_component(component);
  gone = std::move(place);
  place = nullptr;
  return {};
}

WeightStore::Hold WeightStore::hold(ComponentId component) const { return impl_->find(component); }

const BlockLayout& WeightStore::layout(BlockId block) const { return impl_->find(block.component)->layouts[block.block]; }
const Model& WeightStore::model(ComponentId component) const { return *impl_->find(component)->model; }
std::size_t WeightStore::components() const { return impl_->all().size(); }
Bytes WeightStore::weight_bytes(ComponentId component) const { return impl_->find(component)->weight_bytes; }
Bytes WeightStore::file_bytes(ComponentId component) const { return impl_->find(component)->file_bytes; }

Status WeightStore::check_sources() const {
  for (const auto& component : impl_->all())
    for (const auto& file : component->files) SLUICE_TRY(file->unchanged());
  return {};
}

Result<std::span<const std::byte>> WeightStore::fetch(BlockId block, std::span<std::byte> staging, const CancelToken& cancel) {
  const auto component = impl_->find(block.component);
  const Bytes size = component->layouts[block.block].size;
  if (size == 0) return std::span<const std::byte>();
  const auto while_fetching = [&](Error error) {
    return fail_while(fmt::format("{}, block '{}'", component->name, component->model->blocks[block.block].name),
                      std::move(error));
  };
  const auto hand_out = [&](std::span<const std::byte> image) {
    impl_->fetched.fetch_add(size, std::memory_order_relaxed);
    return image;
  };
  if (const auto kept = component->images.find(block.block)) return hand_out(*kept);
  if (component->images.booked(block.block)) {
    const auto made = impl_->fill_kept(*component, block.block, cancel);
    if (made) return hand_out(*made);
    const bool no_memory = made.error().code == Code::device_oom || made.error().code == Code::over_budget;
    if (!no_memory || staging.size() < size) return while_fetching(made.error());
    component->images.renounce(block.block);
    impl_->options.log(LogLevel::warning, "{}: no host memory for block '{}' ({}); it is read from disk at each use",
                       component->name, component->model->blocks[block.block].name, made.error().message);
  }
  if (staging.size() < size)
    return while_fetching({Code::invalid_argument, "the staging buffer is smaller than the image", size, staging.size()});
  const auto image = staging.first(size);
  if (auto filled = impl_->fill(*component, block.block, image, cancel); !filled)
    return while_fetching(std::move(filled).error());
  return hand_out(image);
}

bool WeightStore::needs_staging(BlockId block) const {
  const auto component = impl_->find(block.component);
  return component->layouts[block.block].size > 0 && !component->images.booked(block.block);
}

Result<bool> WeightStore::bind_mapped(BlockId block, std::size_t weight, ggml_tensor* tensor) {
  const auto component = impl_->find(block.component);
  if (!component->mappable[block.block]) return false;
  const BlockLayout& layout = component->layouts[block.block];
  const auto& expected = layout.tensors[weight];
  bool same = tensor->type == expected.type && !tensor->data && !tensor->view_src;
  for (std::size_t i = 0; i < GGML_MAX_DIMS; ++i)
    same = same && tensor->ne[i] == (i < expected.shape.size() ? expected.shape[i] : 1);
  if (!same)
    return fail(Code::invalid_argument,
                fmt::format("{}, block '{}', weight {}: the tensor is not of the layout's type and shape", component->name,
                            component->model->blocks[block.block].name, weight));
  const WeightRecipe& recipe = component->recipes[block.block][weight];
  const std::lock_guard lock(impl_->mutex);
  if (!component->bound.contains(block.block)) {
    auto lease = impl_->device.ledger().reserve(Use::mapped, layout.size);
    if (!lease) return fail_while(component->name, std::move(lease).error());
    component->bound.emplace(block.block, *std::move(lease));
  }
  SLUICE_TRY(component->mapping_of(recipe).bind(tensor, recipe.begin));
  return true;
}

bool WeightStore::mappable(BlockId block) const { return impl_->find(block.component)->mappable[block.block]; }

std::optional<Address> WeightStore::resident(BlockId block) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->residents.find(block);
}

void WeightStore::set_resident(BlockId block, Address address) {
  const Bytes size = layout(block).size;
  const std::lock_guard lock(impl_->mutex);
  impl_->residents.put(block, address, size);
}

void WeightStore::give_up(BlockId block) {
  const auto component = impl_->find(block.component);
  const std::lock_guard lock(impl_->mutex);
  impl_->residents.erase(block);
  if (component->bound.erase(block.block) == 0) return;
  for (const auto& recipe : component->recipes[block.block]) component->mapping_of(recipe).drop(recipe.begin, recipe.bytes);
}

std::vector<BlockId> WeightStore::residents_in(Address from, Address to) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->residents.overlapping(from, to);
}

Ledger& WeightStore::host_ledger() { return impl_->host; }

WeightStore::Counters WeightStore::counters() const {
  Counters counters{impl_->bytes_read.load(), 0, impl_->fetched.load()};
  for (const auto& component : impl_->all()) counters.images_kept += component->images.bytes();
  return counters;
}

}  // namespace sluice
