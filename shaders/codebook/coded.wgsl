// A coded factor, decoded as it is read: `codes`, `words` words an adapter, a column of w-bit fields after another, and
// `codebooks`, 52 centroids an adapter. The widths and the order of bits are those of `ops::codes`.
//
// BITS is the width of every column; MIXED where each column's header word, `offset << 5 | bits`, names its own.

const MIXED = 255u;
const CODEBOOK = 52u;
// Where a width's centroids start in the codebook: two, three, four bits, then both stages of the two-stage widths.
const TWO = 0u;
const THREE = 4u;
const FOUR = 12u;
const FIRST = 28u;
const SECOND = 44u;

var<workgroup> codebook: array<f32, CODEBOOK>;

// Of 16 columns and 16 runs of four rows, which are an invocation's: neighbours read neighbouring words of a column.
fn lane_column(lane: u32) -> u32 {
    return lane / 16u;
}

fn lane_run(lane: u32) -> u32 {
    return lane % 16u;
}

fn lane_of(column: u32, run: u32) -> u32 {
    return column * 16u + run;
}

// Makes ready to read factor `factor`; what the functions below need of it. A barrier must follow.
fn open_factor(factor: u32, lane: u32) -> u32 {
    if (lane < CODEBOOK) {
        codebook[lane] = load_codebooks(factor * CODEBOOK + lane);
    }
    return factor * launch.params.words;
}

fn centroid(bits: u32, field: u32) -> f32 {
    switch (bits) {
        case 2u: {
            return codebook[TWO + field];
        }
        case 3u: {
            return codebook[THREE + field];
        }
        case 4u: {
            return codebook[FOUR + field];
        }
        case 7u: {
            return codebook[FIRST + (field & 15u)] + codebook[SECOND + (field >> 4u)];
        }
        case 16u: {
            return codebook[FIRST + (field & 255u)] + codebook[SECOND + (field >> 8u)];
        }
        default: {
            return 0.0;
        }
    }
}

// Rows e to e + 3 of column j; e is a multiple of 4. Past the last row, whatever the padding's zero fields mean.
fn factor_run(origin: u32, j: u32, e: u32) -> vec4<f32> {
    var bits = BITS;
    var start = origin + j * ((launch.params.d + 31u) / 32u) * BITS;
    if (BITS == MIXED) {
        let header = load_codes(origin + j);
        bits = header & 31u;
        start = origin + (header >> 5u);
    }
    if (bits == 0u) {
        return vec4<f32>();
    }
    // Every 32 rows start on a word, from where bits are counted: those of a whole column need not fit 32 bits. Four fields lie in at most two words.
    let at = e % 32u * bits;
    let word = start + e / 32u * bits + (at >> 5u);
    let shift = at & 31u;
    let low = load_codes(word);
    var high = 0u;
    if (shift + 4u * bits > 32u) {
        high = load_codes(word + 1u);
    }
    let mask = (1u << bits) - 1u;
    var run = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        let place = shift + i * bits;
        var field = 0u;
        if (place >= 32u) {
            field = high >> (place - 32u);
        } else {
            field = low >> place;
            if (place + bits > 32u) {
                // Here place > 0: no width is 32 bits.
                field |= high << (32u - place);
            }
        }
        run[i] = centroid(bits, field & mask);
    }
    return run;
}
