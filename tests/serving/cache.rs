//! The pool of pages against a model that is too simple to be wrong, and what a page's name depends on.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trifuse::Error;
use trifuse::llm::cache::{Blocks, Digest, Hits, Table, link, seed};

/// Pages as a list that is searched from the front: who holds how many, what is where.
struct Naive {
    references: Vec<u32>,
    names: Vec<Option<Digest>>,
    free: Vec<u32>,
}

impl Naive {
    fn new(pages: u32) -> Self {
        Self { references: vec![0; pages as usize], names: vec![None; pages as usize], free: (0..pages).collect() }
    }

    fn take(&mut self) -> Option<u32> {
        let page = if self.free.is_empty() { return None } else { self.free.remove(0) };
        self.references[page as usize] = 1;
        self.names[page as usize] = None;
        Some(page)
    }

    fn find(&self, name: &Digest) -> Option<u32> {
        self.names.iter().position(|other| *other == Some(*name)).map(|page| page as u32)
    }

    fn share(&mut self, name: &Digest) -> Option<u32> {
        let page = self.find(name)?;
        self.references[page as usize] += 1;
        self.free.retain(|other| *other != page);
        Some(page)
    }

    fn release(&mut self, page: u32) {
        self.references[page as usize] -= 1;
        if self.references[page as usize] == 0 {
            let at = if self.names[page as usize].is_some() { self.free.len() } else { 0 };
            self.free.insert(at, page);
        }
    }

    fn name(&mut self, page: u32, name: Digest) -> bool {
        let may = self.names[page as usize].is_none() && self.find(&name).is_none();
        if may {
            self.names[page as usize] = Some(name);
        }
        may
    }
}

#[test]
fn the_pool_agrees_with_a_naive_one_over_a_hundred_thousand_operations() {
    for (round, pages) in [(0, 1u32), (1, 2), (2, 7), (3, 24), (4, 64)] {
        let mut draw = ChaCha8Rng::seed_from_u64(round);
        let (mut blocks, mut naive) = (Blocks::new(pages).unwrap(), Naive::new(pages));
        let mut held: Vec<u32> = Vec::new();
        let mut evictions = 0;
        let names: Vec<Digest> = (0..2 * pages).map(|name| link(&Digest([0; 32]), &[name])).collect();
        for _ in 0..25_000 {
            let name = names[draw.random_range(0..names.len())];
            match draw.random_range(0..100) {
                0..30 => {
                    let evicts = naive.free.first().is_some_and(|page| naive.names[*page as usize].is_some());
                    evictions += u32::from(evicts);
                    let page = blocks.take();
                    assert_eq!(page, naive.take());
                    held.extend(page);
                }
                30..45 => {
                    let page = blocks.share(&name);
                    assert_eq!(page, naive.share(&name));
                    held.extend(page);
                }
                45..55 if !held.is_empty() => {
                    let page = held[draw.random_range(0..held.len())];
                    blocks.retain(page).unwrap();
                    naive.references[page as usize] += 1;
                    held.push(page);
                }
                55..70 if !held.is_empty() => {
                    let page = held[draw.random_range(0..held.len())];
                    assert_eq!(blocks.name(page, name).unwrap(), naive.name(page, name));
                }
                _ if !held.is_empty() => {
                    let page = held.swap_remove(draw.random_range(0..held.len()));
                    blocks.release(page).unwrap();
                    naive.release(page);
                }
                _ => {}
            }
            assert_eq!((blocks.free(), blocks.used()), (naive.free.len(), pages as usize - naive.free.len()));
            let page = draw.random_range(0..pages);
            assert_eq!(blocks.references(page).unwrap(), naive.references[page as usize]);
            assert_eq!(blocks.references(page).unwrap() as usize, held.iter().filter(|other| **other == page).count());
            assert_eq!(blocks.find(&name), naive.find(&name));
        }
        assert!(evictions > 100, "{evictions} evictions in a pool of {pages}");
    }
}

#[test]
fn a_free_page_is_refused_and_a_page_outside_too() {
    let mut blocks = Blocks::new(2).unwrap();
    let page = blocks.take().unwrap();
    blocks.release(page).unwrap();
    let told: Vec<String> = [blocks.release(page), blocks.retain(page), blocks.name(page, Digest([0; 32])).map(drop), blocks.release(2)]
        .into_iter()
        .map(|result| result.unwrap_err().to_string())
        .collect();
    let free = "page: expected one that somebody holds, found 0, which is free";
    assert_eq!(told, [free, free, free, "page: expected less than 2, found 2"]);
    assert_eq!((blocks.free(), blocks.take(), blocks.take(), blocks.take()), (2, Some(0), Some(1), None));
    assert!(matches!(Blocks::new(0), Err(Error::Invalid { .. })));
}

/// A table of pages of 4 whose request computed `tokens`, in a pool.
fn computed(blocks: &mut Blocks, of: Digest, tokens: &[u32]) -> Table {
    let mut table = Table::new(4, of).unwrap();
    assert!(table.grow(blocks, tokens.len()));
    table.name(blocks, tokens).unwrap();
    table
}

#[test]
fn only_full_pages_of_an_equal_beginning_are_hit() {
    let model = Digest::of(b"model");
    let of = seed(&model, None, None);
    let tokens: Vec<u32> = (0..23).collect();
    let mut blocks = Blocks::new(32).unwrap();
    let mut first = computed(&mut blocks, of, &tokens);
    let hits = |blocks: &Blocks, of: Digest, tokens: &[u32]| {
        let mut table = Table::new(4, of).unwrap();
        table.hash(tokens);
        table.hits(blocks, tokens.len()).pages
    };
    // One token more or less than pages that are full.
    let expected = [(3, 0), (4, 1), (5, 1), (19, 4), (20, 5), (21, 5), (23, 5)];
    assert_eq!(expected.map(|(count, _)| (count, hits(&blocks, of, &tokens[..count]))), expected);
    for at in 0..20 {
        let mut other = tokens.clone();
        other[at] += 1000;
        assert_eq!(hits(&blocks, of, &other), at / 4, "another token at {at}");
    }
    // Let go of, its pages are still found; its end is evicted before its beginning.
    first.release(&mut blocks).unwrap();
    assert_eq!(hits(&blocks, of, &tokens), 5);
    let others: Vec<u32> = (0..32 - 5 + 2).map(|_| blocks.take().unwrap()).collect();
    assert_eq!(hits(&blocks, of, &tokens), 3, "{others:?}");
    // Computed again, they are named again.
    others.into_iter().for_each(|page| blocks.release(page).unwrap());
    assert!(first.grow(&mut blocks, tokens.len()));
    first.name(&mut blocks, &tokens).unwrap();
    assert_eq!(hits(&blocks, of, &tokens), 5);
}

#[test]
fn another_model_adapter_or_salt_misses() {
    let [model, other, a, b] = [&b"model"[..], b"other", b"a", b"b"].map(Digest::of);
    let seeds = [
        seed(&model, None, None),
        seed(&other, None, None),
        seed(&model, Some(&a), None),
        seed(&model, Some(&b), None),
        seed(&model, None, Some(b"")),
        seed(&model, None, Some(b"tenant")),
        seed(&model, None, Some(&[&[1][..], &a.0].concat())),
        seed(&model, Some(&a), Some(b"tenant")),
        seed(&model, Some(&b), Some(b"tenant")),
    ];
    let tokens = [7; 8];
    for (index, of) in seeds.iter().enumerate() {
        let mut blocks = Blocks::new(4).unwrap();
        let mut table = computed(&mut blocks, *of, &tokens);
        table.release(&mut blocks).unwrap();
        for (other_index, other) in seeds.iter().enumerate() {
            let mut table = Table::new(4, *other).unwrap();
            table.hash(&tokens);
            let expected = if index == other_index { Hits { pages: 2, idle: 2 } } else { Hits::default() };
            assert_eq!(table.hits(&blocks, 8), expected, "seed {other_index} on pages of {index}");
        }
    }
    assert_ne!(link(&seeds[0], &[1, 2]), link(&link(&seeds[0], &[1]), &[2]));
}

#[test]
fn a_fork_shares_full_pages_and_each_lets_go_of_its_own() {
    let of = seed(&Digest::of(b"model"), None, None);
    let tokens: Vec<u32> = (0..11).collect();
    let mut blocks = Blocks::new(8).unwrap();
    let mut first = computed(&mut blocks, of, &tokens);
    let mut second = first.fork(&mut blocks, 10).unwrap();
    assert_eq!(second.pages(), &first.pages()[..2]);
    assert!(second.grow(&mut blocks, 11));
    assert_ne!(second.pages()[2], first.pages()[2]);
    assert_eq!(blocks.used(), 4);
    assert!(first.fork(&mut blocks, 16).is_err());
    first.release(&mut blocks).unwrap();
    assert_eq!(blocks.used(), 3);
    // Both tables compute the same page: the first name stays.
    second.name(&mut blocks, &tokens).unwrap();
    second.release(&mut blocks).unwrap();
    assert_eq!(blocks.free(), 8);
}

#[test]
fn a_table_takes_all_missing_pages_or_none() {
    let of = seed(&Digest::of(b"model"), None, None);
    let mut blocks = Blocks::new(3).unwrap();
    let mut table = Table::new(4, of).unwrap();
    assert!(!table.grow(&mut blocks, 13));
    assert_eq!((table.pages(), blocks.free()), (&[][..], 3));
    assert!(table.grow(&mut blocks, 9));
    assert_eq!((0..12).map(|at| table.slot(at).unwrap()).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
    assert_eq!(table.slot(12).unwrap_err().to_string(), "position: expected less than 12, in a pool of 32 bits, found 12");
    assert!(table.name(&mut blocks, &[0; 16]).is_err(), "more pages than it has");
    assert!(table.adopt(&mut blocks, Hits { pages: 1, idle: 1 }).is_err(), "it has pages");
    table.release(&mut blocks).unwrap();
    let told = table.adopt(&mut blocks, Hits { pages: 5, idle: 5 }).unwrap_err().to_string();
    assert!(told.contains("5 pages in the pool"), "{told}");
    assert_eq!(blocks.free(), 3);
}
