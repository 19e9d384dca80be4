//! What an engine refuses, and who is served all the same.

use trifuse::adapters::encoded::Matrix;

use super::*;

#[test]
fn an_adapter_of_the_source_that_cannot_be_served_is_left_out_by_name() {
    let (mut session, whole) = (session(), population(&on(Rung::Plain)));
    let mut more = whole.clone();
    // A sound bundle may hold more columns than the operation takes, and what others wrote may be of another shape.
    let wide = trifuse::ops::codebook_gemm::MAX_RANK as usize + 1;
    for (name, rows, cols) in [("a wide one", WIDTH, wide), ("another shape", WIDTH - 1, 8)] {
        let mut adapter = whole.adapters["rust"].clone();
        let projection = adapter.projections.get_mut(QUERY).unwrap();
        let zeros = || EncodedFactor::Plain(Matrix::new(rows, cols, vec![half::f16::ZERO; rows * cols]).unwrap());
        (projection.input, projection.output, projection.core) = (zeros(), zeros(), None);
        more.adapters.insert(name.into(), adapter);
    }
    let mut engine = open(&mut session, &more, None);
    let told: Vec<String> = engine.refused().map(|(name, why)| format!("{name}: {why}")).collect();
    assert!(told.len() == 2 && told[0].contains("rank: expected at most 1024") && told[1].starts_with("another shape: "), "{told:?}");
    assert!(engine.adapter("a wide one").is_err());
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&whole, &MIXED));
}

#[test]
fn an_unknown_name_does_not_cost_the_names_of_all() {
    let (mut session, mut population) = (session(), population(&on(Rung::Plain)));
    let one = population.adapters["rust"].clone();
    population.adapters = (0..100).map(|number| (format!("adapter-{number:03}"), one.clone())).collect();
    let told = open(&mut session, &population, None).adapter("nobody").unwrap_err().to_string();
    assert!(told.contains("adapter-004 and 95 more") && !told.contains("adapter-005"), "{told}");
}

#[test]
fn an_engine_is_for_the_session_that_it_was_opened_with() {
    let (mut own, mut other, population) = (session(), session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut own, &population, None);
    let one = ids(&engine, &["rust"]);
    let refused = |result: trifuse::Result<()>| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("the session that it was opened with"), "{text}");
    };
    refused(engine.batch(&mut other, &one).map(drop));
    refused(engine.add(&mut other, "more", population.adapters["rust"].clone()).map(drop));
    let batch = engine.batch(&mut own, &one).unwrap();
    let (x, y) = (input(&mut other, 1), other.upload(&[0f32; WIDTH]).unwrap());
    refused(engine.apply(&mut other, &batch, &x, WIDTH as u64, &[target(QUERY, &y)]));
}
