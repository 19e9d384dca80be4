// The work of a workgroup of the codebook kernels: up to TILE tokens of one adapter, sorted by the host.
//
// token_adapter is the index data of the tokens: [segments, adapted, adapter[total], order[total],
// segment_adapter[total], segment_start[total + 1]]. How many segments there are may change between two runs of the same
// dispatch; it always asks for the most there can be, and the groups that find nothing return.

struct Params {
    // Tokens of the batch.
    total: u32,
    // The rows that this dispatch works on: the first, and how many.
    row0: u32,
    rows: u32,
    // Tiles there can be.
    tiles: u32,
    // The factors (adapters, or bases) that this dispatch can reach: the first, and how many.
    factor0: u32,
    factors: u32,
    // The size of a factor, [d, rank].
    d: u32,
    rank: u32,
    // Words of an adapter's codes.
    words: u32,
    // Elements from a row of x, or of y, to the next.
    stride: u32,
    // Whether the scaling is each token's own.
    scaled_by_token: u32,
}

// Tokens of a tile, and invocations of a workgroup.
const TILE = 16u;
const INVOCATIONS = 256u;
// In place of a row: the token is another dispatch's.
const NONE = 0xffffffffu;

struct Tile {
    adapter: u32,
    // The adapter's factor, counted from the first in reach.
    factor: u32,
    // Tokens; 0 where there is nothing to do.
    tokens: u32,
    // The place of the first token in `order`.
    place: u32,
}

var<workgroup> shared_tile: Tile;
// The row of each token, counted from the dispatch's first, or NONE.
var<workgroup> tile_rows: array<u32, TILE>;

fn token_word(at: u32) -> u32 {
    return u32(load_token_adapter(at));
}

fn segment_start(segment: u32) -> u32 {
    return token_word(2u + 3u * launch.params.total + segment);
}

// The number of the first tile of a segment. A segment of n tokens from place a takes ceil(n / TILE) tiles, which is at
// most floor((a + n) / TILE) - floor(a / TILE) + 1: the numbers of two segments never meet, and none needs a sum over
// the segments before it.
fn first_tile(segment: u32) -> u32 {
    return segment_start(segment) / TILE + segment;
}

fn row_of(place: u32) -> u32 {
    let token = token_word(2u + launch.params.total + place);
    return select(NONE, token - launch.params.row0, token >= launch.params.row0 && token - launch.params.row0 < launch.params.rows);
}

fn find_tile(number: u32) -> Tile {
    let nothing = Tile(0u, 0u, 0u, 0u);
    let segments = token_word(0u);
    if (segments == 0u) {
        return nothing;
    }
    // The last segment that starts at this tile or before it.
    var low = 0u;
    var high = segments;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (first_tile(middle) <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    let place = segment_start(low) + (number - first_tile(low)) * TILE;
    let end = segment_start(low + 1u);
    if (place >= end) {
        return nothing;
    }
    let tokens = min(end - place, TILE);
    // Tokens of a segment ascend: the tile is outside the dispatch's rows where its ends are, on one side.
    let first = token_word(2u + launch.params.total + place);
    let last = token_word(2u + launch.params.total + place + tokens - 1u);
    if (last < launch.params.row0 || first >= launch.params.row0 + launch.params.rows) {
        return nothing;
    }
    let adapter = token_word(2u + 2u * launch.params.total + low);
    var factor = adapter;
    if (!OWN_FACTOR) {
        factor = u32(load_basis_of(adapter));
    }
    if (factor < launch.params.factor0 || factor - launch.params.factor0 >= launch.params.factors) {
        return nothing;
    }
    return Tile(adapter, factor - launch.params.factor0, tokens, place);
}

// The tile of that number, found by one invocation for all. The rows are there after the next barrier.
fn open_tile(number: u32, lane: u32) -> Tile {
    if (lane == 0u) {
        shared_tile = find_tile(number);
    }
    let tile = workgroupUniformLoad(&shared_tile);
    if (lane < TILE) {
        tile_rows[lane] = NONE;
        if (lane < tile.tokens) {
            tile_rows[lane] = row_of(tile.place + lane);
        }
    }
    return tile;
}
