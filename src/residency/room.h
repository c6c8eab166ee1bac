#pragma once

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "device/arena.h"

namespace sluice {

/// Something that takes device memory for longer than a stage: on a shelf, or booked without a place (weights used in place).
struct RoomOccupant {
  Address at = 0;  ///< on a shelf; without meaning where `booked`
  Bytes size = 0;
  bool booked = false;
  bool again = false;  ///< if it leaves, it is to be placed anew: what is too scattered is put together
};

/// What is to be placed, and what it may cost.
struct RoomQuestion {
  Bytes capacity = 0;  ///< for zone, shelves and bookings together
  Bytes zone = 0;      ///< bytes the zone will have
  Bytes booked = 0;    ///< bytes of new bookings
  Bytes largest = 0;   ///< a shelf has at most this, unless it is for a single larger object
  std::size_t shelves_at_most = 0;  ///< more are not made, whatever has to leave for it
  std::size_t shelves_usual = 0;    ///< more are not made only to have them smaller
  std::vector<Arena::Shelf> shelves;
  std::vector<RoomOccupant> stay;   ///< never leave
  std::vector<RoomOccupant> leave;  ///< may leave, in this order
  std::vector<Bytes> wanted;        ///< multiples of the alignment; none 0; what is to be given up last comes first
};

/// How it is done.
struct RoomAnswer {
  std::vector<std::size_t> given_up;  ///< indices into `leave`, ascending
  struct Place {
    bool fresh = false;     ///< on a new shelf
    std::size_t shelf = 0;  ///< index into new_shelves, where fresh
    Address at = 0;         ///< address, or the offset on the new shelf
  };
  std::vector<Place> places;       ///< parallel to `wanted`, then to those of `given_up` that are placed again
  std::vector<Bytes> new_shelves;  ///< sizes: exactly what is placed on them
};

/// Finds room. Occupants are marked in order until everything fits: in holes of shelves that stay, on new shelves for which
/// emptied ones make way. Of what needs new shelves about half goes on the first, half of the rest on the next and so on, so
/// that giving up the last blocks soon empties a shelf, with few of them. Then each mark without which it fits as well is taken
/// back, the last first, so no mark is in vain. When it fits at once nothing is given up. Pure. Cost: O(occupants × (occupants
/// + wanted)) at worst, hundreds of both: < 1 ms. Errors: over_budget with needed and available when not even giving up all of
/// `leave` helps.
Result<RoomAnswer> make_room(const RoomQuestion& question);

}  // namespace sluice
