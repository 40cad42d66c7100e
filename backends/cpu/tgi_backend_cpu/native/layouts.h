// How the numbers of a panel are kept: one header per layout.
//
// A layout other than the dense one has a class of lines, (data, panel, room, stay), that gives kSteps steps of a panel at a time as dense
// units: next<BLOCKS>() writes them to `room` and returns where they begin. If they are to stay, each call writes behind the one before,
// and beyond the panel's end no more than kRoom lines.
#pragma once

#include "dense.h"
#include "bf12.h"

namespace tgi {

// Mirrored in tables.py.
enum class Layout : int32_t { dense = 0, bf12 = 1 };

}  // namespace tgi
