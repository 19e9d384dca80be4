// What is done to a row. The numbers are those of the host's `launch`.
#pragma once

#include "ptx/types.cuh"

enum Kind : u32 { RMS_NORM = 0, LAYER_NORM = 1, ROPE = 2, EMBEDDING = 3, MEAN_POOL = 4, L2_NORMALISE = 5, ADD = 6, ACTIVATION = 7, EMBEDDING_NORM = 8, APPEND = 9, STORE = 10, GLU = 11 };
