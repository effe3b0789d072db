use super::*;

#[test]
fn bursts_are_admitted_and_then_spread_out() {
    let ms = Duration::from_millis;
    let mut throttle = Throttle::new(ms(0));
    assert_eq!(throttle.admit(ms(0)), Ok(()));
    assert_eq!(throttle.admit(ms(30)), Err(ms(70)));
    assert_eq!(throttle.admit(ms(100)), Ok(()));
    let rested = ms(60_000);
    let burst = (0..20).take_while(|_| throttle.admit(rested).is_ok()).count();
    assert_eq!(burst, 10);
    assert_eq!(throttle.admit(rested), Err(ms(100)));
}

#[test]
fn no_more_than_ten_and_ten_a_second() {
    let mut throttle = Throttle::new(Duration::ZERO);
    let admitted = (0..10_000).filter(|ms| throttle.admit(Duration::from_millis(*ms)).is_ok()).count();
    assert!((100..=110).contains(&admitted), "{admitted}");
}
