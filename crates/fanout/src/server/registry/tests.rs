use super::*;

const LIMITS: Limits = Limits { total: 5, per_address: 3, before_hello: 2 };

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_address_has_a_limit_before_the_hello_and_one_in_all() {
    let registry = Registry::default();
    let (one, two) = (address("10.0.0.1"), address("10.0.0.2"));
    let (first, before) = registry.enter(one, LIMITS).unwrap();
    let second = registry.enter(address("::ffff:10.0.0.1"), LIMITS).unwrap();
    assert_eq!(registry.enter(one, LIMITS).unwrap_err(), Excess::Address, "two clients have not sent a hello");
    let other = registry.enter(two, LIMITS).unwrap();

    drop(before);
    let (third, before) = registry.enter(one, LIMITS).unwrap();
    drop(before);
    assert_eq!(registry.enter(one, LIMITS).unwrap_err(), Excess::Address, "three are open");
    let another = registry.enter(two, LIMITS).unwrap();
    assert_eq!(registry.enter(address("10.0.0.3"), LIMITS).unwrap_err(), Excess::Total);

    drop((first, second, third, other, another));
    assert_eq!(registry.len(), 0);
    assert!(registry.lock().addresses.is_empty(), "an address without a connection takes no memory");
}
