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
  bool movable = false;  ///< may get another place: where free bytes suffice and lie too scattered
};

/// What is to be placed, and what it may cost.
struct RoomQuestion {
  Bytes capacity = 0;               ///< for zone, shelves and bookings together
  Bytes zone = 0;                   ///< bytes the zone will have
  Bytes booked = 0;                 ///< bytes of new bookings
  Bytes largest = 0;                ///< a shelf has at most this, unless it is for a single larger object
  std::size_t shelves_at_most = 0;  ///< more are not made
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
  std::vector<Place> places;  ///< parallel to `wanted`
  struct Moved {
    bool of_leave = false;  ///< index into `leave`, else into `stay`
    std::size_t index = 0;
    Place place;
  };
  std::vector<Moved> moved;
  std::vector<Bytes> new_shelves;  ///< sizes: exactly what is placed on them
};

/// Finds room. Occupants are marked in order until the bytes suffice, and each mark without which they suffice as well is taken
/// back, the last first: what is given up is less than what is missing and one block. Then everything is placed: in holes of
/// shelves that stay, on new shelves for which emptied ones make way; where free bytes lie too scattered, what is left on as
/// few shelves as needed is moved. New shelves become smaller towards the end, so that giving up what comes last soon empties
/// one. When it fits at once nothing is given up. Pure. Cost: O(shelves × occupants), hundreds of both: < 1 ms. Errors:
/// over_budget with needed and available when not even giving up all of `leave` helps.
Result<RoomAnswer> make_room(const RoomQuestion& question);

}  // namespace sluice
