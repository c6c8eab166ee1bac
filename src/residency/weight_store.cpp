#include "residency/weight_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <mutex>
#include <set>
#include <utility>

#include "io/convert.h"
#include "residency/component_recipes.h"
#include "residency/host_images.h"
#include "residency/image_reader.h"
#include "residency/mapped_file.h"
#include "residency/split_weights.h"

namespace sluice {
namespace {

/// One registration. Fixed once it is in the store, but for what its members guard themselves and what the store's mutex
/// guards.
struct Component {
  std::string name;
  const Model* model = nullptr;
  Recipes recipes;
  std::map<WeightPosition, std::vector<WeightPosition>> ties;
  std::vector<std::shared_ptr<const TensorFile>> sources;  // each once, in the order of their first use
  std::vector<std::shared_ptr<const File>> files;          // each once
  std::vector<std::shared_ptr<MappedFile>> mappings;       // parallel to `files`, HostTier::mapped only
  Bytes file_bytes = 0;
  HostImages images;  // HostTier::read only

  // What follows changes in `place` and `assign` alone, while nobody uses the component.
  std::vector<std::size_t> candidates;      // the devices its blocks may be on
  std::vector<std::size_t> device_of;       // [block]
  std::vector<BlockLayout> layouts;         // [block]
  std::vector<bool> mappable;               // [block]
  std::optional<SplitWeights> split;        // changes in `share_rows`, `load_split` and `unload_split`
  std::vector<SplitWeights::Weight> apart;  // by block
  Bytes weight_bytes = 0;

  // Grow under the store's mutex only, so that who sees 0 under it knows that nobody comes.
  std::atomic<int> holds{0}, fetching{0};

  // Guarded by the store's mutex.
  std::map<std::uint32_t, std::weak_ptr<const void>> held_blocks;
  std::map<std::uint32_t, std::set<BlockFlag>> flags;
  bool warned_of_budget = false;

  bool in_use() const { return holds > 0 || fetching > 0; }
  bool flagged(std::uint32_t block) const {
    const auto found = flags.find(block);
    return found != flags.end() && !found->second.empty();
  }
  MappedFile& mapping_of(const WeightRecipe& recipe) const {
    const auto at = std::find(files.begin(), files.end(), recipe.file->file);
    return *mappings[static_cast<std::size_t>(at - files.begin())];
  }
};

/// Counts somebody as long as it lives.
class Presence {
 public:
  Presence(std::shared_ptr<Component> component, std::atomic<int> Component::* count)
      : component_(std::move(component)), count_(count) {
    ++((*component_).*count_);
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;
  ~Presence() { --((*component_).*count_); }
  Component& operator*() const { return *component_; }
  Component* operator->() const { return component_.get(); }

 private:
  std::shared_ptr<Component> component_;
  std::atomic<int> Component::* count_;
};

/// Blocks that hold bytes as their file has them before those that want the same bytes converted, so that these find them.
std::vector<std::uint32_t> load_order(const Component& c) {
  std::vector<bool> converts(c.recipes.size(), false);
  for (const auto& [position, others] : c.ties) {
    if (c.recipes[position.first][position.second].identity) continue;
    for (const auto& [b, w] : others)
      if (b != position.first && c.recipes[b][w].identity) converts[position.first] = true;
  }
  std::vector<std::uint32_t> order;
  for (const bool later : {false, true})
    for (std::uint32_t b = 0; b < converts.size(); ++b)
      if (converts[b] == later) order.push_back(b);
  return order;
}

Status in_use_error(const Component& c) {
  return fail(Code::invalid_argument, fmt::format("component '{}' is in use: end its sessions first", c.name));
}

}  // namespace

struct WeightStore::Impl {
  Impl(std::vector<Device*> d, Options o)
      : devices(std::move(d)),
        options(std::move(o)),
        pool(options.host_budget, options.pinned_budget),
        split_on(devices.size()) {
    assert(!devices.empty());
  }

  const std::vector<Device*> devices;
  const Options options;
  HostPool pool;
  Scratch scratch;
  std::vector<Lease> scratch_leases;  // one for each time it grew
  std::atomic<Bytes> bytes_read{0}, fetched{0};
  std::atomic<std::uint64_t> clock{0};       // of uses of images
  std::vector<std::atomic<Bytes>> split_on;  // per device: bytes of loaded weights whose rows are spread

  mutable std::mutex mutex;  // guards what follows; never held while a file is read
  std::vector<std::shared_ptr<Component>> components;
  std::vector<Source> sources;

  const std::shared_ptr<Component>& find_locked(ComponentId id) const {
    assert(id < components.size() && components[id]);
    return components[id];
  }
  std::shared_ptr<Component> find(ComponentId id) const {
    const std::lock_guard lock(mutex);
    return find_locked(id);
  }
  std::vector<std::shared_ptr<Component>> all() const {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Component>> present;
    for (const auto& c : components)
      if (c) present.push_back(c);
    return present;
  }

  bool in_place_device(const Device& device) const {
    // The simulated device's memory is its own by definition: it proves that nothing else is used.
    return options.tier == HostTier::mapped && device.info().host_memory && device.info().kind != DeviceKind::simulated;
  }

  bool block_mappable(const Component& c, std::size_t block) const {
    const BlockLayout& layout = c.layouts[block];
    Device& device = *devices[c.device_of[block]];
    if (!in_place_device(device) || layout.size == 0) return false;
    for (std::size_t w = 0; w < layout.tensors.size(); ++w) {
      if (layout.tensors[w].apart) continue;
      const WeightRecipe& recipe = c.recipes[block][w];
      const Bytes alignment = std::max<Bytes>(device.info().alignment, ggml_backend_buft_get_alignment(device.buffer_type()));
      MappedFile& mapping = c.mapping_of(recipe);
      if (!recipe.identity || !mapping.aligned(recipe.begin, alignment) || !mapping.map_on(device)) return false;
    }
    return true;
  }

  BlockLayout layout_for(const Component& c, std::size_t block, std::size_t device) const {
    const Block& what = c.model->blocks[block];
    if (!c.split) return lay_out_block(what, c.recipes[block], *devices[device]);
    std::vector<bool> apart(what.weights.size(), false);
    for (std::uint32_t w = 0; w < apart.size(); ++w)
      apart[w] = what.weights[w].role == WeightRole::matrix && !c.ties.contains({static_cast<std::uint32_t>(block), w}) &&
                 c.split->takes(c.recipes[block][w].type, what.weights[w].shape);
    BlockLayout layout = lay_out_block(what, c.recipes[block], *devices[device], apart);
    layout.apart_in = c.split->stand_in();
    return layout;
  }

  void lay_out(Component& c, std::vector<std::size_t> device_of, std::vector<BlockLayout> layouts) const {
    c.device_of = std::move(device_of);
    c.layouts = std::move(layouts);
    c.weight_bytes = 0;
    c.mappable.clear();
    c.apart.clear();
    for (std::size_t b = 0; b < c.layouts.size(); ++b) {
      c.weight_bytes += c.layouts[b].size;
      for (std::size_t w = 0; w < c.layouts[b].tensors.size(); ++w) {
        const auto& tensor = c.layouts[b].tensors[w];
        if (!tensor.apart) continue;
        c.weight_bytes += tensor.size;
        c.apart.push_back(
            {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(w), tensor.type, tensor.shape[0], tensor.shape[1]});
      }
      c.mappable.push_back(block_mappable(c, b));
    }
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
    SLUICE_ASSIGN(Lease lease, pool.all().reserve(Use::staging, size - present));
    const std::lock_guard lock(scratch.mutex);
    scratch.bytes.resize(size);
    scratch_leases.push_back(std::move(lease));
    return {};
  }

  /// A booking that its component does not need now.
  struct Idle {
    std::uint64_t last_use = 0;
    Component* component = nullptr;
    std::uint32_t block = 0;
    Bytes size = 0;
  };

  /// Bookings that may be taken, the least recently used first; of those never used, the last that were registered. Under the
  /// mutex.
  std::vector<Idle> idle_bookings(const std::vector<Component*>& among) const {
    std::vector<Idle> idle;
    for (auto c = among.rbegin(); c != among.rend(); ++c) {
      if ((*c)->in_use()) continue;
      for (std::size_t b = (*c)->layouts.size(); b-- > 0;) {
        const auto block = static_cast<std::uint32_t>(b);
        if ((*c)->images.booked(b) && !(*c)->flagged(block))
          idle.push_back({(*c)->images.last_use(b), *c, block, (*c)->layouts[b].size});
      }
    }
    std::stable_sort(idle.begin(), idle.end(), [](const Idle& a, const Idle& b) { return a.last_use < b.last_use; });
    return idle;
  }

  /// Under the mutex.
  std::vector<Component*> present(const Component* but = nullptr) const {
    std::vector<Component*> list;
    for (const auto& c : components)
      if (c && c.get() != but) list.push_back(c.get());
    return list;
  }

  static Bytes largest_not_kept(const std::vector<Component*>& among) {
    Bytes largest = 0;
    for (const Component* c : among)
      for (std::size_t b = 0; b < c->layouts.size(); ++b)
        if (!c->images.booked(b)) largest = std::max(largest, c->layouts[b].size);
    return largest;
  }

  /// Bytes that nobody has booked; none: unlimited.
  std::optional<Bytes> free_host() {
    const LedgerReport books = pool.all().report();
    if (!books.limit) return std::nullopt;
    return *books.limit - std::min(*books.limit, books.total + books.backend);
  }

  /// Takes bookings back until the largest image of any component that is not kept fits beside those that are: it has to pass
  /// through. Components that are in use have their staging already and keep what they have.
  void leave_room_for_staging(Component& added) {
    const std::lock_guard lock(mutex);
    auto among = present();
    among.push_back(&added);
    for (const Idle& idle : idle_bookings(among)) {
      const auto free = free_host();
      if (!free || largest_not_kept(among) <= *free) return;
      idle.component->images.renounce(idle.block);
    }
  }

  void book_images(Component& c) {
    std::vector<Bytes> sizes;
    for (const auto& layout : c.layouts) sizes.push_back(layout.size);
    c.images.book(pool.all(), sizes);
    leave_room_for_staging(c);
  }

  /// Books one image of a component that nobody holds, if that takes from nobody and what is not kept can still pass through.
  /// Under the mutex.
  bool book_if_free(Component& c, std::size_t block) {
    if (const auto free = free_host()) {
      const Bytes size = c.layouts[block].size;
      Bytes passing = largest_not_kept(present(&c));
      for (std::size_t b = 0; b < c.layouts.size(); ++b)
        if (b != block && !c.images.booked(b)) passing = std::max(passing, c.layouts[b].size);
      if (size > *free || passing > *free - size) return false;
    }
    return c.images.book(pool.all(), block);
  }

  /// Books what of a component's images is not booked, in place of idle ones where needed. Returns a warning, the first time
  /// that some cannot be. Under the mutex.
  std::string acquire_images(Component& c) {
    if (options.tier != HostTier::read) return {};
    std::vector<Bytes> wanted;
    for (std::size_t b = 0; b < c.layouts.size(); ++b) wanted.push_back(c.images.booked(b) ? 0 : c.layouts[b].size);
    const auto others = present(&c);
    const auto idle = idle_bookings(others);
    std::vector<Bytes> sizes;
    for (const Idle& one : idle) sizes.push_back(one.size);
    const Taking taking = choose_taken(free_host(), wanted, sizes, largest_not_kept(others));
    for (std::size_t i = 0; i < taking.taken; ++i) idle[i].component->images.renounce(idle[i].block);
    for (std::size_t b = 0; b < wanted.size(); ++b)
      if (taking.kept[b]) c.images.book(pool.all(), b);
    const auto all = static_cast<std::size_t>(
        std::count_if(c.layouts.begin(), c.layouts.end(), [](const BlockLayout& layout) { return layout.size > 0; }));
    const std::size_t kept = c.images.booked_blocks();
    if (kept == all || std::exchange(c.warned_of_budget, true)) return {};
    return fmt::format("{}: the host budget keeps {} of {} blocks; the others are read from disk at each use", c.name, kept,
                       all);
  }

  /// Host memory for an image that is booked. Where the system has none, images that nobody uses make way, the least recently
  /// used first.
  Result<HostPiece> allocate_image(const Component& c, std::size_t block) {
    for (;;) {
      auto piece = pool.allocate(*devices[c.device_of[block]], Use::images, c.layouts[block].size);
      if (piece || piece.error().code != Code::device_oom) return piece;
      const std::lock_guard lock(mutex);
      const auto idle = idle_bookings(present());
      const auto made =
          std::find_if(idle.begin(), idle.end(), [](const Idle& i) { return i.component->images.find(i.block).has_value(); });
      if (made == idle.end()) return piece;
      made->component->images.renounce(made->block);
    }
  }

  /// Fills `image` anew, whatever is kept.
  Status fill(const Component& c, std::size_t block, std::span<std::byte> image, const CancelToken& cancel) {
    const BlockLayout& layout = c.layouts[block];
    const auto& recipes = c.recipes[block];
    // A streamed image would push everything else out of the page cache.
    if (options.tier != HostTier::mapped) return read_image(recipes, layout, true, scratch, image, cancel, bytes_read);
    std::vector<std::span<const std::byte>> files;
    for (const auto& recipe : recipes) files.push_back(c.mapping_of(recipe).bytes());
    SLUICE_TRY(copy_image(recipes, layout, files, image, cancel));
    // Where the budget is the host's memory, touched pages of a streamed block would count against it.
    if (devices[c.device_of[block]]->info().host_memory)
      for (const ReadRun& run : plan_reads(recipes, layout, UINT64_MAX))
        c.mapping_of(recipes[run.weights.front()]).drop(run.begin, run.end - run.begin);
    return {};
  }

  /// Fills a weight from another one of the same bytes in the file: `from` is the other's place in an image.
  static Status copy_tied(const WeightRecipe& other, std::span<const std::byte> from, const WeightRecipe& recipe,
                          std::span<std::byte> out) {
    if (other.type != recipe.type) return convert(recipe.info(), from, recipe.elements, recipe.type, out);
    std::copy(from.begin(), from.end(), out.begin());
    return {};
  }

  /// Makes the kept image of a booked block, or says why not. Bytes that an image of the component has already, or that the
  /// block wants twice, are not read again.
  Result<std::span<const std::byte>> fill_kept(Component& c, std::uint32_t block, const CancelToken& cancel) {
    const BlockLayout& layout = c.layouts[block];
    const auto& recipes = c.recipes[block];
    SLUICE_ASSIGN(HostPiece piece, allocate_image(c, block));
    const auto image = piece.buffer->bytes().first(layout.size);
    const auto place = [](const BlockLayout& l, std::span<std::byte> bytes, std::size_t w) {
      return bytes.subspan(l.tensors[w].offset, l.tensors[w].size);
    };
    std::vector<bool> skip(recipes.size(), false);
    std::vector<std::pair<std::size_t, std::size_t>> later;  // (weight, the one of this block that it is made from)
    for (std::uint32_t w = 0; w < recipes.size(); ++w) {
      const auto ties = c.ties.find({block, w});
      if (ties == c.ties.end()) continue;
      const auto usable = [&](const WeightRecipe& other) { return other.identity || other.type == recipes[w].type; };
      std::optional<std::size_t> here;
      for (const auto& [b, o] : ties->second) {
        const WeightRecipe& other = c.recipes[b][o];
        if (b == block) {
          // An identical copy first, else the first of the same type: neither is made from a third one.
          const bool better = other.identity ? !here || !recipes[*here].identity : !here && other.type == recipes[w].type;
          if (better && (o < w || (other.identity && !recipes[w].identity))) here = o;
          continue;
        }
        const auto made = usable(other) ? c.images.find(b) : std::nullopt;
        if (!made) continue;
        const auto& tensor = c.layouts[b].tensors[o];
        SLUICE_TRY(copy_tied(other, made->subspan(tensor.offset, tensor.size), recipes[w], place(layout, image, w)));
        skip[w] = true;
        break;
      }
      if (skip[w] || !here || layout.tensors[*here].offset == layout.tensors[w].offset) continue;
      skip[w] = true;
      later.emplace_back(w, *here);
    }
    // The page cache keeps what was read: it helps the next start of the program.
    SLUICE_TRY(read_image(recipes, layout, false, scratch, image, cancel, bytes_read, skip));
    for (const auto& [w, from] : later)
      SLUICE_TRY(copy_tied(recipes[from], place(layout, image, from), recipes[w], place(layout, image, w)));
    return c.images.keep(block, std::move(piece));
  }

  /// Puts each block on its device of `device_of`. `whole`: no block may hold what its file does not, moved or not. Under the
  /// mutex.
  Status move_blocks(Component& c, std::vector<std::size_t> device_of, bool whole) {
    if (c.in_use()) return in_use_error(c);
    for (std::uint32_t b = 0; b < c.layouts.size(); ++b)
      if (c.flagged(b) && (whole || device_of[b] != c.device_of[b]))
        return fail(Code::invalid_argument,
                    fmt::format("component '{}' cannot leave its device: block '{}' holds what its file does not", c.name,
                                c.model->blocks[b].name));
    if (c.split && (whole || device_of != c.device_of))
      return fail(Code::invalid_argument,
                  fmt::format("component '{}' cannot leave its device: rows of its weights lie spread over several", c.name));
    if (device_of == c.device_of) return {};
    std::vector<BlockLayout> layouts;
    for (std::size_t b = 0; b < c.layouts.size(); ++b)
      layouts.push_back(device_of[b] == c.device_of[b] ? c.layouts[b] : layout_for(c, b, device_of[b]));
    lay_out_anew(c, std::move(device_of), std::move(layouts));
    return {};
  }

  /// Under the mutex; nobody uses the component.
  void lay_out_anew(Component& c, std::vector<std::size_t> device_of, std::vector<BlockLayout> layouts) {
    std::vector<std::size_t> anew;
    for (std::size_t b = 0; b < layouts.size() && options.tier == HostTier::read; ++b) {
      if (same_image(layouts[b], c.layouts[b])) continue;
      c.images.renounce(b);
      c.images.resize(b, layouts[b].size);
      anew.push_back(b);
    }
    lay_out(c, std::move(device_of), std::move(layouts));
    for (const std::size_t b : anew)
      if (c.layouts[b].size > 0) book_if_free(c, b);
  }

  /// A weight's bytes, whatever is kept.
  Status fill_weight(const Component& c, const SplitWeights::Weight& weight, std::span<std::byte> out,
                     const CancelToken& cancel) {
    const WeightRecipe& recipe = c.recipes[weight.block][weight.weight];
    BlockLayout alone;
    alone.tensors = {c.layouts[weight.block].tensors[weight.weight]};
    alone.tensors[0].apart = false;
    alone.size = out.size();
    // What is on the devices to stay is not wanted in the page cache.
    if (options.tier != HostTier::mapped) return read_image({&recipe, 1}, alone, true, scratch, out, cancel, bytes_read);
    const std::span<const std::byte> file = c.mapping_of(recipe).bytes();
    SLUICE_TRY(copy_image({&recipe, 1}, alone, {&file, 1}, out, cancel));
    c.mapping_of(recipe).drop(recipe.begin, recipe.bytes);
    return {};
  }

  void count_split(const Component& c, bool there) {
    const auto bytes = c.split->bytes(c.apart);
    for (std::size_t m = 0; m < bytes.size(); ++m) {
      auto& sum = split_on[c.split->members()[m].index];
      there ? sum.fetch_add(bytes[m]) : sum.fetch_sub(bytes[m]);
    }
  }

  /// Under the mutex.
  void forget_split(Component& c) {
    if (!c.split || !c.split->loaded()) return;
    count_split(c, false);
    c.split->unload();
    for (const auto& weight : c.apart) c.flags[weight.block].erase(BlockFlag::row_split);
  }

  /// Gives a block's image and booking back if nothing forbids it. Under the mutex.
  static HostImages::Kept let_go(Component& c, std::uint32_t block) {
    if (c.in_use() || c.flagged(block) || !c.images.booked(block)) return {};
    return c.images.renounce(block);
  }

  Hold hold(const std::shared_ptr<Component>& component, std::string& warning) {
    if (component->holds == 0) warning = acquire_images(*component);
    return std::make_shared<const Presence>(component, &Component::holds);
  }
};

WeightStore::WeightStore(std::vector<Device*> devices, Options options)
    : impl_(std::make_unique<Impl>(std::move(devices), std::move(options))) {}
WeightStore::WeightStore(Device& device, Options options) : WeightStore(std::vector<Device*>{&device}, std::move(options)) {}
WeightStore::~WeightStore() = default;

Status WeightStore::add_source(const std::string& name, std::shared_ptr<const TensorFile> file) {
  if (name.empty() || !file) return fail(Code::invalid_argument, "a source has a name and a file");
  const std::lock_guard lock(impl_->mutex);
  for (const Source& source : impl_->sources)
    if (source.name == name)
      return fail(Code::invalid_argument, fmt::format("source '{}' is there already: {}", name, source.file->file->path()));
  for (const Source& source : impl_->sources)
    if (source.file == file)
      return fail(Code::invalid_argument, fmt::format("{} is source '{}' already", file->file->path(), source.name));
  impl_->sources.push_back({name, std::move(file)});
  return {};
}

Result<std::shared_ptr<const TensorFile>> WeightStore::add_source(const std::string& name, const std::string& path,
                                                                  const FileSource& files) {
  SLUICE_ASSIGN(auto file, open_tensor_file(path, files));
  SLUICE_TRY(add_source(name, file));
  return file;
}

Status WeightStore::remove_source(const std::string& name) {
  const std::lock_guard lock(impl_->mutex);
  const auto source =
      std::find_if(impl_->sources.begin(), impl_->sources.end(), [&](const Source& s) { return s.name == name; });
  if (source == impl_->sources.end()) return fail(Code::not_found, fmt::format("there is no source '{}'", name));
  std::vector<std::string> users;
  for (const auto& c : impl_->components)
    if (c && std::find(c->sources.begin(), c->sources.end(), source->file) != c->sources.end())
      users.push_back(fmt::format("'{}'", c->name));
  if (!users.empty())
    return fail(Code::invalid_argument,
                fmt::format("source '{}' ({}) is used by {}: remove {} first", name, source->file->file->path(),
                            fmt::join(users, ", "), users.size() == 1 ? "it" : "them"));
  impl_->sources.erase(source);
  return {};
}

std::vector<WeightStore::Source> WeightStore::sources_of(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<Source> list;
  for (const auto& file : impl_->find_locked(component)->sources) {
    const auto named =
        std::find_if(impl_->sources.begin(), impl_->sources.end(), [&](const Source& s) { return s.file == file; });
    list.push_back({named == impl_->sources.end() ? std::string() : named->name, file});
  }
  return list;
}

Result<ComponentId> WeightStore::add(ComponentSpec spec) {
  if (!spec.model) return fail(Code::invalid_argument, spec.name + ": no model");
  if (spec.devices.empty()) return fail(Code::invalid_argument, spec.name + ": no device");
  for (const std::size_t device : spec.devices)
    if (device >= impl_->devices.size())
      return fail(Code::invalid_argument, fmt::format("{}: device {} of {}", spec.name, device, impl_->devices.size()));
  for (const auto& other : impl_->all())
    if (other->name == spec.name)
      return fail(Code::invalid_argument, fmt::format("component '{}' is registered already", spec.name));
  auto component = std::make_shared<Component>();
  Component& c = *component;
  c.name = spec.name;
  c.model = spec.model;
  c.candidates = spec.devices;
  SLUICE_ASSIGN(c.recipes, resolve_component(spec.name, *spec.model, spec.sources));
  c.file_bytes = bytes_in_files(c.recipes);
  c.ties = find_ties(c.recipes);
  if (spec.split_rows) {
    std::vector<SplitWeights::Member> members;
    for (const std::size_t device : spec.devices) members.push_back({impl_->devices[device], device});
    auto split = SplitWeights::open(std::move(members), spec.split_from);
    if (!split) return fail_while(spec.name, std::move(split).error());
    c.split.emplace(*std::move(split));
  }
  const auto once = [](auto& list, const auto& item) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
  };
  for (const auto& block : c.recipes)
    for (const auto& recipe : block) {
      once(c.sources, recipe.file);
      once(c.files, recipe.file->file);
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
  std::vector<BlockLayout> layouts;
  for (std::size_t b = 0; b < c.recipes.size(); ++b) layouts.push_back(impl_->layout_for(c, b, spec.devices[0]));
  impl_->lay_out(c, std::vector<std::size_t>(c.recipes.size(), spec.devices[0]), std::move(layouts));
  if (impl_->options.tier == HostTier::read) impl_->book_images(c);

  const std::lock_guard lock(impl_->mutex);
  impl_->components.push_back(std::move(component));
  return static_cast<ComponentId>(impl_->components.size() - 1);
}

Status WeightStore::remove(ComponentId component) {
  std::shared_ptr<Component> gone;  // goes after the lock: unmapping and freeing take time
  const std::lock_guard lock(impl_->mutex);
  auto& place = impl_->components[component];
  assert(place);
  if (place->in_use()) return in_use_error(*place);
  impl_->forget_split(*place);
  gone = std::move(place);
  place = nullptr;
  return {};
}

WeightStore::Hold WeightStore::hold(ComponentId component) const {
  std::string warning;
  Hold hold;
  {
    const std::lock_guard lock(impl_->mutex);
    hold = impl_->hold(impl_->find_locked(component), warning);
  }
  if (!warning.empty()) impl_->options.log(LogLevel::warning, "{}", warning);
  return hold;
}

bool WeightStore::in_use(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->find_locked(component)->in_use();
}

WeightStore::Hold WeightStore::hold(BlockId block) {
  std::string warning;
  Hold hold;
  {
    const std::lock_guard lock(impl_->mutex);
    const auto& component = impl_->find_locked(block.component);
    auto& place = component->held_blocks[block.block];
    hold = place.lock();
    if (!hold) place = hold = impl_->hold(component, warning);
  }
  if (!warning.empty()) impl_->options.log(LogLevel::warning, "{}", warning);
  return hold;
}

bool WeightStore::held(BlockId block) const {
  const std::lock_guard lock(impl_->mutex);
  const auto& component = impl_->find_locked(block.component);
  const auto found = component->held_blocks.find(block.block);
  return found != component->held_blocks.end() && !found->second.expired();
}

void WeightStore::set_flag(BlockId block, BlockFlag flag, bool on) {
  const std::lock_guard lock(impl_->mutex);
  auto& flags = impl_->find_locked(block.component)->flags[block.block];
  if (on)
    flags.insert(flag);
  else
    flags.erase(flag);
}

bool WeightStore::has_flag(BlockId block, BlockFlag flag) const {
  const std::lock_guard lock(impl_->mutex);
  const auto& component = impl_->find_locked(block.component);
  const auto found = component->flags.find(block.block);
  return found != component->flags.end() && found->second.contains(flag);
}

bool WeightStore::has(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  return component < impl_->components.size() && impl_->components[component];
}

std::size_t WeightStore::device_of(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  const Component& c = *impl_->find_locked(component);
  return c.device_of.empty() ? c.candidates[0] : c.device_of[0];
}

std::size_t WeightStore::device_of(BlockId block) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->find_locked(block.component)->device_of[block.block];
}

std::vector<std::size_t> WeightStore::devices_of(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->find_locked(component)->candidates;
}

BlockLayout WeightStore::layout_on(BlockId block, std::size_t device) const {
  return impl_->layout_for(*impl_->find(block.component), block.block, device);
}

Status WeightStore::place(ComponentId component, std::size_t device) {
  if (device >= impl_->devices.size())
    return fail(Code::invalid_argument, fmt::format("device {} of {}", device, impl_->devices.size()));
  const std::lock_guard lock(impl_->mutex);
  Component& c = *impl_->find_locked(component);
  SLUICE_TRY(impl_->move_blocks(c, std::vector<std::size_t>(c.layouts.size(), device), true));
  c.candidates = {device};
  return {};
}

Status WeightStore::assign(ComponentId component, const std::vector<std::size_t>& device_of) {
  const std::lock_guard lock(impl_->mutex);
  Component& c = *impl_->find_locked(component);
  for (const std::size_t device : device_of)
    if (std::find(c.candidates.begin(), c.candidates.end(), device) == c.candidates.end())
      return fail(Code::invalid_argument, fmt::format("component '{}' has no business on device {}", c.name, device));
  return impl_->move_blocks(c, device_of, false);
}

bool WeightStore::splits_rows(ComponentId component) const { return impl_->find(component)->split.has_value(); }

Result<bool> WeightStore::share_rows(ComponentId component, std::vector<float> shares) {
  const std::lock_guard lock(impl_->mutex);
  Component& c = *impl_->find_locked(component);
  if (!c.split || c.split->loaded() || c.in_use() || c.split->shares() == shares) return false;
  const auto before = c.split->shares();
  if (auto set = c.split->set_shares(std::move(shares)); !set) {
    (void)c.split->set_shares(before);
    return fail_while(c.name, std::move(set).error());
  }
  std::vector<BlockLayout> layouts;
  for (std::size_t b = 0; b < c.layouts.size(); ++b) layouts.push_back(impl_->layout_for(c, b, c.device_of[b]));
  impl_->lay_out_anew(c, c.device_of, std::move(layouts));
  return true;
}

std::vector<Bytes> WeightStore::split_bytes(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  const Component& c = *impl_->find_locked(component);
  std::vector<Bytes> bytes(impl_->devices.size(), 0);
  if (!c.split) return bytes;
  const auto each = c.split->bytes(c.apart);
  for (std::size_t m = 0; m < each.size(); ++m) bytes[c.split->members()[m].index] = each[m];
  return bytes;
}

Status WeightStore::load_split(ComponentId component, const CancelToken& cancel) {
  const auto shared = impl_->find(component);
  Component& c = *shared;
  if (!c.split || c.split->loaded() || c.apart.empty()) return {};
  Bytes largest = 0;
  for (const auto& weight : c.apart) largest = std::max(largest, c.layouts[weight.block].tensors[weight.weight].size);
  SLUICE_ASSIGN(const Lease lease, impl_->pool.all().reserve(Use::staging, largest));
  SLUICE_ASSIGN(const HostPiece staging, impl_->pool.allocate(*c.split->members()[0].device, Use::staging, largest));
  const auto fetch = [&](const SplitWeights::Weight& weight) -> Result<std::span<const std::byte>> {
    const auto out = staging.buffer->bytes().first(c.layouts[weight.block].tensors[weight.weight].size);
    SLUICE_TRY(impl_->fill_weight(c, weight, out, cancel));
    return out;
  };
  if (auto done = c.split->load(c.apart, fetch, cancel); !done)
    return fail_while(fmt::format("{}, spreading rows over devices", c.name), std::move(done).error());
  const std::lock_guard lock(impl_->mutex);
  impl_->count_split(c, true);
  for (const auto& weight : c.apart) c.flags[weight.block].insert(BlockFlag::row_split);
  return {};
}

void WeightStore::unload_split(ComponentId component) {
  const std::lock_guard lock(impl_->mutex);
  impl_->forget_split(*impl_->find_locked(component));
}

bool WeightStore::split_loaded(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  const Component& c = *impl_->find_locked(component);
  return c.split && c.split->loaded();
}

const ggml_tensor* WeightStore::split_tensor(BlockId block, std::size_t weight) const {
  const auto component = impl_->find(block.component);
  return component->split ? component->split->find(block.block, static_cast<std::uint32_t>(weight)) : nullptr;
}

int WeightStore::split_generation(ComponentId component) const {
  const std::lock_guard lock(impl_->mutex);
  const Component& c = *impl_->find_locked(component);
  return c.split ? c.split->generation() : 0;
}

Bytes WeightStore::split_on(std::size_t device) const { return impl_->split_on[device].load(); }

Status WeightStore::load(ComponentId component, const CancelToken& cancel, const LoadProgress& progress) {
  std::string warning;
  Hold hold;
  std::shared_ptr<Component> shared;
  std::vector<bool> had_booking, made;
  {
    const std::lock_guard lock(impl_->mutex);
    shared = impl_->find_locked(component);
    if (shared->in_use()) return in_use_error(*shared);
    for (std::size_t b = 0; b < shared->layouts.size(); ++b) had_booking.push_back(shared->images.booked(b));
    hold = impl_->hold(shared, warning);
  }
  if (!warning.empty()) impl_->options.log(LogLevel::warning, "{}", warning);
  Component& c = *shared;
  made.resize(c.layouts.size());
  Bytes total = 0, done = 0;
  const auto wanted = [&](std::size_t b) {
    if (impl_->options.tier == HostTier::mapped) return c.layouts[b].size > 0;
    return c.images.booked(b) && !c.images.find(b);
  };
  for (std::size_t b = 0; b < c.layouts.size(); ++b)
    if (wanted(b)) total += c.layouts[b].size;
  const auto load_all = [&]() -> Status {
    for (const auto& file : c.files) SLUICE_TRY(file->unchanged());
    for (const std::uint32_t b : load_order(c)) {
      if (!wanted(b)) continue;
      if (cancel.cancelled()) return fail(Code::cancelled, "cancelled while loading weights");
      if (impl_->options.tier == HostTier::mapped) {
        for (const ReadRun& run : plan_reads(c.recipes[b], c.layouts[b], UINT64_MAX))
          c.mapping_of(c.recipes[b][run.weights.front()]).will_need(run.begin, run.end - run.begin);
      } else {
        auto image = impl_->fill_kept(c, b, cancel);
        if (!image) return fail_while(fmt::format("block '{}'", c.model->blocks[b].name), std::move(image).error());
        c.images.touch(b, ++impl_->clock);
      }
      made[b] = true;
      done += c.layouts[b].size;
      if (progress) progress(done, total);
    }
    return {};
  };
  auto loaded = load_all();
  if (loaded) return {};
  const std::lock_guard lock(impl_->mutex);
  // Who has come to hold it meanwhile may be using the images: they are right, and stay.
  const bool alone = c.holds == 1 && c.fetching == 0;
  for (std::uint32_t b = 0; b < made.size() && alone; ++b) {
    if (impl_->options.tier == HostTier::mapped) {
      if (made[b])
        for (const auto& recipe : c.recipes[b]) c.mapping_of(recipe).drop(recipe.begin, recipe.bytes);
    } else if (c.images.booked(b) && !had_booking[b]) {
      c.images.renounce(b);
    } else if (made[b]) {
      c.images.unmake(b);
    }
  }
  return fail_while(c.name, std::move(loaded).error());
}

bool WeightStore::has_host_copy(BlockId block) const {
  const auto component = impl_->find(block.component);
  return impl_->options.tier == HostTier::mapped || component->images.find(block.block).has_value();
}

Bytes WeightStore::demote(BlockId block) {
  HostImages::Kept gone;  // after the lock: freeing takes time
  const std::lock_guard lock(impl_->mutex);
  gone = impl_->let_go(*impl_->find_locked(block.component), block.block);
  return gone.size;
}

Bytes WeightStore::demote_idle() {
  std::vector<HostImages::Kept> gone;
  Bytes sum = 0;
  const std::lock_guard lock(impl_->mutex);
  for (Component* c : impl_->present())
    for (std::uint32_t b = 0; b < c->layouts.size(); ++b) {
      gone.push_back(impl_->let_go(*c, b));
      sum += gone.back().size;
    }
  return sum;
}

void WeightStore::drop_mapped(BlockId block) {
  const auto component = impl_->find(block.component);
  if (component->mappings.empty()) return;
  for (const auto& recipe : component->recipes[block.block]) component->mapping_of(recipe).drop(recipe.begin, recipe.bytes);
}

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
  std::optional<Presence> component;
  {
    const std::lock_guard lock(impl_->mutex);
    component.emplace(impl_->find_locked(block.component), &Component::fetching);
    Component& c = **component;
    if (impl_->options.tier == HostTier::read && c.holds == 0 && !c.images.booked(block.block) &&
        c.layouts[block.block].size > 0)
      impl_->book_if_free(c, block.block);
  }
  Component& c = **component;
  const Bytes size = c.layouts[block.block].size;
  if (size == 0) return std::span<const std::byte>();
  const auto while_fetching = [&](Error error) {
    return fail_while(fmt::format("{}, block '{}'", c.name, c.model->blocks[block.block].name), std::move(error));
  };
  const auto hand_out = [&](std::span<const std::byte> image) {
    impl_->fetched.fetch_add(size, std::memory_order_relaxed);
    c.images.touch(block.block, ++impl_->clock);
    return image;
  };
  if (const auto kept = c.images.find(block.block)) return hand_out(*kept);
  if (c.images.booked(block.block)) {
    const auto made = impl_->fill_kept(c, block.block, cancel);
    if (made) return hand_out(*made);
    const bool no_memory = made.error().code == Code::device_oom || made.error().code == Code::over_budget;
    if (!no_memory || staging.size() < size) return while_fetching(made.error());
    c.images.renounce(block.block);
    impl_->options.log(LogLevel::warning, "{}: no host memory for block '{}' ({}); it is read from disk at each use", c.name,
                       c.model->blocks[block.block].name, made.error().message);
  }
  if (staging.size() < size)
    return while_fetching({Code::invalid_argument, "the staging buffer is smaller than the image", size, staging.size()});
  const auto image = staging.first(size);
  if (auto filled = impl_->fill(c, block.block, image, cancel); !filled) return while_fetching(std::move(filled).error());
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
  SLUICE_TRY(component->mapping_of(recipe).bind(*impl_->devices[component->device_of[block.block]], tensor, recipe.begin));
  return true;
}

bool WeightStore::mappable(BlockId block) const { return impl_->find(block.component)->mappable[block.block]; }

Ledger& WeightStore::host_ledger() { return impl_->pool.all(); }
Ledger& WeightStore::pinned_ledger() { return impl_->pool.pinned(); }
Result<HostPiece> WeightStore::allocate_host(std::size_t device, Use use, Bytes size) {
  return impl_->pool.allocate(*impl_->devices[device], use, size);
}

WeightStore::Counters WeightStore::counters() const {
  Counters counters{impl_->bytes_read.load(), 0, impl_->fetched.load()};
  for (const auto& component : impl_->all()) counters.images_kept += component->images.bytes();
  return counters;
}

}  // namespace sluice
