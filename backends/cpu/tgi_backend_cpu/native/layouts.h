// How a panel stores its elements: one header per layout.
//
// A layout other than dense has a class of lines, constructed from (data, panel, room, stay), that decodes kSteps steps of a panel at a
// time to dense units: next<BLOCKS>() writes them to `room` and returns their address. With `stay`, each call writes after the previous one, at
// most kRoom lines beyond the end of the panel; Again is the class of lines that reads them for other rows. If kGrouped, the sums of
// scales.steps() steps each are multiplied by scales.next<BLOCKS>().
#pragma once

#include "dense.h"
#include "bf12.h"
#include "codes.h"

namespace tgi {

// int4 and int8 have none: their panels are multiplied as they are (int8.h).
//
// Mirrored in interface.py.
enum class Layout : int32_t { dense = 0, bf12 = 1, codes4 = 2, codes8 = 3, int8 = 4, int4 = 5, e4m3 = 6, levels = 7 };

}  // namespace tgi
