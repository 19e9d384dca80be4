//! Many threads that pass two sessions, their indices and their buffers around.

use std::array::from_fn;
use std::sync::{Arc, Mutex, PoisonError};

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::index::{Index, TokenAdapters};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::Test;
use super::work::{ADAPTERS, Adapted, TOKENS, noise};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("buffers and indices stay whole among many threads and two sessions", many)]
}

const THREADS: u32 = 6;
/// Steps of a thread.
const STEPS: usize = 24;
/// Bytes of a buffer that is passed around.
const PIECE: usize = 1200;
const MIXES: [[i32; TOKENS]; 2] = [[0, 3, 3, -1, 5, 1, 0, 0, 2, 4, -1, 5], [5, -1, 2, 2, 2, 0, 1, 4, 4, -1, 3, 0]];

/// A session, an operation of its own, and what that gives for each mix of adapters.
struct Station<B: Backend> {
    session: Session<B>,
    adapted: Adapted<B>,
    answers: [Vec<u8>; 2],
}

/// A buffer that some session wrote and waited for, and the seed of what is in it.
type Piece<B> = (Slice<B>, u32);

fn bytes(seed: u32) -> Vec<u8> {
    (0..PIECE).map(|at| noise(seed, at)).collect()
}

impl<B: Backend> Station<B> {
    fn new(device: &Arc<B>, seed: u32) -> Result<Self> {
        let mut session = Session::new(device.clone())?;
        let adapted = Adapted::new(&mut session, &MIXES[0], from_fn(|at| seed + at as u32))?;
        let mut station = Self { session, adapted, answers: [vec![], vec![]] };
        station.answers = [station.answer(0)?, station.answer(1)?];
        assert_ne!(station.answers[0], station.answers[1]);
        Ok(station)
    }

    /// What the operation gives for a mix.
    fn answer(&mut self, mix: usize) -> Result<Vec<u8>> {
        self.session.update_index(&self.adapted.tokens, &TokenAdapters::new(&MIXES[mix], ADAPTERS)?)?;
        self.adapted.run(&mut self.session)?;
        self.session.read(self.adapted.y())
    }

    /// Writes a piece, in a new buffer where none is given.
    fn fill(&mut self, slice: Option<Slice<B>>, seed: u32) -> Result<Piece<B>> {
        let slice = match slice {
            Some(slice) => {
                self.session.write(&slice, &bytes(seed))?;
                slice
            }
            None => self.session.upload(&bytes(seed))?,
        };
        self.session.synchronize()?;
        Ok((slice, seed))
    }

    /// Reads a piece by way of a copy, which is dropped while the device may still have work.
    fn check(&mut self, (slice, seed): &Piece<B>) -> Result<()> {
        let copy = self.session.alloc(PIECE as u64)?;
        self.session.copy(slice, &copy)?;
        assert!(self.session.read(&copy)? == bytes(*seed), "a buffer holds what was not written last");
        Ok(())
    }
}

fn many<B: Backend>(device: &Arc<B>) -> Result<()> {
    let stations = [Station::new(device, 10)?, Station::new(device, 50)?];
    let strange: [Index<TokenAdapters, B>; 2] = [stations[1].adapted.tokens.clone(), stations[0].adapted.tokens.clone()];
    let (stations, shelf) = (stations.map(Mutex::new), Mutex::new(Vec::<Piece<B>>::new()));
    let taken = || shelf.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let put = |piece: Piece<B>| shelf.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
    let work = |thread: u32| -> Result<()> {
        for step in 0..STEPS {
            let (choice, seed) = (usize::from(noise(thread, step)), thread * 1000 + step as u32);
            let place = choice % 2;
            let mut station = stations[place].lock().unwrap_or_else(PoisonError::into_inner);
            match (choice / 2 % 5, taken()) {
                (0 | 1, piece) => {
                    piece.into_iter().for_each(put);
                    let mix = choice / 16 % 2;
                    assert!(station.answer(mix)? == station.answers[mix], "an answer depends on other threads");
                }
                (2, piece) => {
                    // The buffer of whichever session made it goes away here.
                    piece.iter().try_for_each(|piece| station.check(piece))?;
                    put(station.fill(None, seed)?);
                }
                (3, Some(piece)) => {
                    station.check(&piece)?;
                    put(station.fill(Some(piece.0), seed)?);
                }
                (_, piece) => {
                    piece.into_iter().for_each(put);
                    let host = TokenAdapters::new(&MIXES[0], ADAPTERS)?;
                    let refused = station.session.update_index(&strange[place], &host);
                    assert!(matches!(refused, Err(Error::Invalid { .. })), "an index of the other session was taken");
                }
            }
        }
        Ok(())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })?;
    let [first, second] = stations.map(|station| station.into_inner().unwrap_or_else(PoisonError::into_inner));
    let left = shelf.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(!left.is_empty());
    for mut station in [first, second] {
        left.iter().try_for_each(|piece| station.check(piece))?;
        assert!(station.answer(0)? == station.answers[0]);
    }
    Ok(())
}
