//! XXH3 with 64 bits, without a seed (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>): the hash by which
//! nodes agree on who answers for an address.

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
const PRIME_MX1: u64 = 0x1656_6791_9E37_79F9;
const PRIME_MX2: u64 = 0x9FB2_1C65_1E98_DF25;

const STRIPE: usize = 64;
const STRIPES_PER_BLOCK: usize = (SECRET.len() - STRIPE) / 8;
const BLOCK: usize = STRIPE * STRIPES_PER_BLOCK;

#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The hash of some bytes.
pub(super) fn hash(input: &[u8]) -> u64 {
    let length = input.len() as u64;
    match input.len() {
        0 => xxh64_avalanche(secret(56) ^ secret(64)),
        1..=3 => {
            let byte = |at: usize| u64::from(input.get(at).copied().unwrap_or_default());
            let combined = byte(0) << 16 | byte(input.len() / 2) << 24 | byte(input.len() - 1) | length << 8;
            xxh64_avalanche(combined ^ (secret32(0) ^ secret32(4)))
        }
        4..=8 => {
            let word = word32(input, input.len() - 4).wrapping_add(word32(input, 0) << 32);
            let mut hash = word ^ secret(8) ^ secret(16);
            hash ^= hash.rotate_left(49) ^ hash.rotate_left(24);
            hash = hash.wrapping_mul(PRIME_MX2);
            hash ^= (hash >> 35).wrapping_add(length);
            hash = hash.wrapping_mul(PRIME_MX2);
            hash ^ hash >> 28
        }
        9..=16 => {
            let low = word(input, 0) ^ secret(24) ^ secret(32);
            let high = word(input, input.len() - 8) ^ secret(40) ^ secret(48);
            let sum = length.wrapping_add(low.swap_bytes()).wrapping_add(high).wrapping_add(folded(low, high));
            avalanche(sum)
        }
        17..=128 => {
            let mut sum = length.wrapping_mul(PRIME64_1);
            // Pairs from both ends towards the middle.
            for pair in (0..=(input.len() - 1) / 32).rev() {
                sum = sum.wrapping_add(mixed(input, 16 * pair, 32 * pair));
                sum = sum.wrapping_add(mixed(input, input.len() - 16 * (pair + 1), 32 * pair + 16));
            }
            avalanche(sum)
        }
        129..=240 => {
            let of = |at: usize, secret: usize| mixed(input, 16 * at, secret);
            let begin = (0..8).fold(length.wrapping_mul(PRIME64_1), |sum, at| sum.wrapping_add(of(at, 16 * at)));
            let rest = 8..input.len() / 16;
            let sum = rest.fold(avalanche(begin), |sum, at| sum.wrapping_add(of(at, 16 * (at - 8) + 3)));
            avalanche(sum.wrapping_add(mixed(input, input.len() - 16, 119)))
        }
        _ => long(input),
    }
}

fn long(input: &[u8]) -> u64 {
    let mut lanes = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
    // The last stripe is whole, and is not among those of blocks.
    let before = input.get(..input.len() - 1).unwrap_or_default();
    let mut blocks = before.chunks_exact(BLOCK);
    for block in &mut blocks {
        for (at, stripe) in block.chunks_exact(STRIPE).enumerate() {
            accumulate(&mut lanes, stripe, 8 * at);
        }
        for (at, lane) in lanes.iter_mut().enumerate() {
            *lane = (*lane ^ *lane >> 47 ^ secret(SECRET.len() - STRIPE + 8 * at)).wrapping_mul(PRIME32_1);
        }
    }
    for (at, stripe) in blocks.remainder().chunks_exact(STRIPE).enumerate() {
        accumulate(&mut lanes, stripe, 8 * at);
    }
    let last = input.get(input.len() - STRIPE..).unwrap_or_default();
    accumulate(&mut lanes, last, SECRET.len() - STRIPE - 7);

    let mut sum = (input.len() as u64).wrapping_mul(PRIME64_1);
    for (at, pair) in lanes.chunks_exact(2).enumerate() {
        if let [low, high] = pair {
            sum = sum.wrapping_add(folded(low ^ secret(11 + 16 * at), high ^ secret(19 + 16 * at)));
        }
    }
    avalanche(sum)
}

fn accumulate(lanes: &mut [u64; 8], stripe: &[u8], secret_at: usize) {
    let old = *lanes;
    for (at, lane) in lanes.iter_mut().enumerate() {
        let neighbour = word(stripe, 8 * (at ^ 1));
        let keyed = word(stripe, 8 * at) ^ secret(secret_at + 8 * at);
        let product = (keyed & 0xffff_ffff).wrapping_mul(keyed >> 32);
        *lane = old.get(at).copied().unwrap_or_default().wrapping_add(neighbour).wrapping_add(product);
    }
}

fn mixed(input: &[u8], at: usize, secret_at: usize) -> u64 {
    folded(word(input, at) ^ secret(secret_at), word(input, at + 8) ^ secret(secret_at + 8))
}

#[allow(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn folded(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

fn avalanche(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 37).wrapping_mul(PRIME_MX1);
    hash ^ hash >> 32
}

fn xxh64_avalanche(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 33).wrapping_mul(PRIME64_2);
    let hash = (hash ^ hash >> 29).wrapping_mul(PRIME64_3);
    hash ^ hash >> 32
}

fn secret(at: usize) -> u64 {
    word(&SECRET, at)
}

fn secret32(at: usize) -> u64 {
    word32(&SECRET, at)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

fn word32(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from(u32::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// Made with version 0.8 of the reference implementation, of the bytes `0, 7, 14, …`, modulo 251.
    #[test]
    fn as_the_reference_implementation() {
        const KNOWN: &[(usize, u64)] = &[
            (0, 0x2d06_8005_38d3_94c2),
            (1, 0xc44b_dff4_074e_ecdb),
            (2, 0x9093_381c_8763_d62e),
            (3, 0xc348_9259_e968_ad9e),
            (4, 0xd3d6_0c15_1901_4e89),
            (5, 0x5599_35c0_f3f7_327f),
            (8, 0xb88d_ee77_f6bf_6980),
            (9, 0x0368_8dca_d730_d826),
            (12, 0x305c_5bae_3681_d0e0),
            (16, 0x9da2_3836_adf2_be1e),
            (17, 0xf34c_3c9c_f5a1_12d1),
            (31, 0x1c67_7662_71b9_5c64),
            (32, 0x99cb_9ad0_f1a1_1fbe),
            (33, 0xc077_b454_92d2_9cde),
            (48, 0x46f3_406f_c273_5d1c),
            (64, 0xfaec_d52e_ffbb_854f),
            (65, 0xfd2b_8a4f_15d9_54d0),
            (80, 0xcd7a_8455_701e_8369),
            (96, 0x8f8a_0c94_0d32_e958),
            (97, 0x92b3_a831_febf_71ac),
            (112, 0x4bcf_ac71_9395_36b1),
            (127, 0x7f31_fdfd_f0c9_15a3),
            (128, 0x4c65_9b74_5f43_5148),
            (129, 0xb852_22b8_3902_b6e5),
            (143, 0xdbbf_853f_67ac_eb7e),
            (144, 0x4030_d31d_7595_1b8f),
            (160, 0x7b45_da47_14c3_419f),
            (200, 0xd120_16b5_3c95_65ba),
            (239, 0x6b9d_88f6_4185_59a4),
            (240, 0xd6df_bf67_b067_5b54),
            (241, 0xc614_c8c3_5753_48c1),
            (255, 0x7170_ba88_ecc1_b4d7),
            (256, 0xf418_6dc1_63a3_283c),
            (257, 0x412f_a6b9_7a75_75ac),
            (320, 0xfffe_25b1_b9c2_e812),
            (1023, 0x540c_9523_214a_845b),
            (1024, 0xf22e_f3dc_84ff_47ea),
            (1025, 0x43f8_69a8_3769_a435),
            (1088, 0x40d7_1f03_7cd0_c530),
            (2048, 0x3d26_49f6_62a2_e191),
            (2049, 0x4583_128a_fa3a_2985),
            (5000, 0xce29_a194_60ee_1bfc),
        ];
        for (length, wanted) in KNOWN {
            let input: Vec<u8> = (0..*length).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
            assert_eq!(hash(&input), *wanted, "{length} bytes");
        }
    }
}
