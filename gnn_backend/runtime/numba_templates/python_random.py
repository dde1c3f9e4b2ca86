"""What Python's ``random.sample`` draws, from the state of its generator.

The generator is MT19937 (Matsumoto and Nishimura, "Mersenne Twister", 1998). Its words are kept in
64 bits, as Numba makes numbers of 32 bits wider in most operations. The functions hold the
interpreter's lock, so that no other thread draws from the generator meanwhile.
"""

# mypy: disable-error-code=no-untyped-def

from numba import njit

WORDS, AHEAD = 624, 397
UPPER, LOWER = 0x80000000, 0x7FFFFFFF
TWIST, MASK_B, MASK_C = 0x9908B0DF, 0x9D2C5680, 0xEFC60000


@njit(cache=True)
def refill(words):
    for k in range(WORDS):
        following = words[k + 1 if k + 1 < WORDS else 0]
        mixed = (words[k] & UPPER) | (following & LOWER)
        ahead = words[k + AHEAD if k + AHEAD < WORDS else k + AHEAD - WORDS]
        words[k] = ahead ^ (mixed >> 1) ^ (-(mixed & 1) & TWIST)


@njit(cache=True)
def next_word(words, place):
    if place[0] >= WORDS:
        refill(words)
        place[0] = 0
    word = words[place[0]]
    place[0] += 1
    word ^= word >> 11
    word ^= (word << 7) & MASK_B
    word ^= (word << 15) & MASK_C
    return word ^ (word >> 18)


@njit(cache=True)
def below(words, place, bits, limit):
    """A number below ``limit``, of so many bits: drawn again until it is."""
    while True:
        number = next_word(words, place)
        if bits <= 32:
            number >>= 32 - bits
        else:
            number |= (next_word(words, place) >> (64 - bits)) << 32
        if number < limit:
            return number


@njit(cache=True)
def draw_distinct(words, place, bits, limit, taken, out):
    """Numbers below ``limit``, each drawn again until it is new.

    ``taken`` is an open hash table of numbers plus one, zeros at first, whose size is a power of
    two. The numbers are uniform, so that their low bits are the hash.
    """
    last = taken.shape[0] - 1
    for k in range(out.shape[0]):
        while True:
            number = below(words, place, bits, limit)
            slot = number & last
            while taken[slot] != 0 and taken[slot] != number + 1:
                slot = (slot + 1) & last
            if taken[slot] == 0:
                break
        taken[slot] = number + 1
        out[k] = number


@njit(cache=True)
def draw_from_pool(words, place, pool, out):
    """Numbers of a pool, from which each is taken out."""
    left = pool.shape[0]
    bits = 0
    while left >> bits:
        bits += 1
    for k in range(out.shape[0]):
        if left < 1 << (bits - 1):
            bits -= 1
        at = below(words, place, bits, left)
        left -= 1
        out[k] = pool[at]
        pool[at] = pool[left]
