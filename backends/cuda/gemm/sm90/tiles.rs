//! Lists of the tiles for which kernels exist.

use super::tile::WgmmaTile;

impl WgmmaTile {
    /// The tiles of `linear`, with room for the epilogue's staging in shared memory. There is a width for every count of tiles that fills
    /// whole waves.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::WHOLE.into_iter().flat_map(|tile| [tile.in_clusters(), tile.alone()]).flatten().chain(Self::PARTS)
    }

    const WHOLE: [Self; 18] = [
        Self::WIDE,
        Self::PINGPONG,
        Self::ending(224),
        Self::ending(168),
        Self::ending(160),
        Self::ending(128),
        Self::new(224),
        Self::new(208),
        Self::MIDDLE,
        Self::new(168),
        Self::new(160),
        Self::new(144),
        Self::NARROW,
        Self::new(112),
        Self::new(96),
        Self::new(88),
        Self::new(80),
        Self::SLIM,
    ];
    const PARTS: [Self; 8] = [
        Self::split_k_cluster(64, 2),
        Self::split_k_cluster(80, 2),
        Self::split_k_cluster(96, 2),
        Self::split_k_cluster(128, 2),
        Self::split_k_cluster(40, 4),
        Self::split_k_cluster(96, 4),
        Self::split_k_multicast(2),
        Self::split_k_multicast(4),
    ];
    /// The tiles with a kernel that multiplies by a LoRA basis too.
    pub(crate) const WITH_LORA: [Self; 2] = [Self::MIDDLE, Self::NARROW];
    /// The tiles of `fused_mlp`, for its first product, which needs no staging in shared memory, and for its second. Both products use
    /// clusters, or neither does.
    pub(crate) const OF_UP: [Self; 7] = [Self::WIDE, Self::PINGPONG, Self::ending(168), Self::ending(160), Self::MIDDLE, Self::FITTED, Self::NARROW];
    pub(crate) const OF_DOWN: [Self; 7] = [Self::WIDE, Self::ending(128), Self::MIDDLE, Self::new(160), Self::NARROW, Self::new(96), Self::SLIM];
}
