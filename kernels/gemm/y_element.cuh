// The type of a product's outputs: the operands' own, or f32 where the host asks for wide outputs, which nothing rounds.
#pragma once

#include "ptx/types.cuh"

#ifdef WIDE_OUTPUTS
typedef f32 y_element;
#else
typedef element y_element;
#endif

constexpr bool WIDE_Y = sizeof(y_element) > sizeof(element);
