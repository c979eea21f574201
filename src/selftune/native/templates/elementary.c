/* Elementary functions without branches, in IEEE 754 arithmetic, so that every compiler and every processor gives the
   same bits, and loops over lanes can use vectors. F is float or double, U the unsigned integer of the same size.
   Blocks are separated by empty lines; generated C contains only the blocks that it needs. Words in capital letters
   are constants of native/c/elementary.py; polynomials.c has the polynomials. */

typedef struct { F hi, lo; } pair_F;

static inline U bits_of_F(F x)
{
    union { F number; U bits; } both;
    both.number = x;
    return both.bits;
}

static inline F with_bits_F(U bits)
{
    union { F number; U bits; } both;
    both.bits = bits;
    return both.number;
}

static inline F abs_F(F x) { return with_bits_F(bits_of_F(x) & ~SIGN); }

/* |x| with the sign of y */
static inline F copy_sign_F(F x, F y) { return with_bits_F((bits_of_F(x) & ~SIGN) | (bits_of_F(y) & SIGN)); }

/* 2^n for n as a two's complement, where 2^n is a normal number */
static inline F power_of_two_F(U n) { return with_bits_F((n + BIAS) << MANTISSA); }

/* x * 2^n in two steps, so that the result may be below the normal numbers, or infinite */
static inline F scaled_F(F x, U n)
{
    const U half = ((n + 4096) >> 1) - 2048;
    return x * power_of_two_F(half) * power_of_two_F(n - half);
}

/* hi + lo = a + b exactly */
static inline pair_F sum_F(F a, F b)
{
    const F hi = a + b, of_b = hi - a;
    const pair_F pair = {hi, (a - (hi - of_b)) + (b - of_b)};
    return pair;
}

/* the same for |a| >= |b|, or a = 0 */
static inline pair_F ordered_sum_F(F a, F b)
{
    const F hi = a + b;
    const pair_F pair = {hi, b - (hi - a)};
    return pair;
}

/* The first half of the digits of a number; the rest is exact, and has half of the digits and one bit more at most. */
static inline F first_half_F(F x) { return with_bits_F(bits_of_F(x) & FIRST_HALF); }

/* hi + lo = a * b with about twice the digits, as long as nothing overflows or is below the normal numbers. In float the
   sum is exact. */
static inline pair_F product_F(F a, F b)
{
    const F a_hi = first_half_F(a), a_lo = a - a_hi, b_hi = first_half_F(b), b_lo = b - b_hi;
    const F hi = a * b;
    const pair_F pair = {hi, ((a_hi * b_hi - hi) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo};
    return pair;
}

/* a / b with about twice the digits */
static inline pair_F ratio_F(pair_F a, pair_F b)
{
    const F q = a.hi / b.hi;
    const pair_F back = product_F(q, b.hi);
    const pair_F pair = {q, (((a.hi - back.hi) - back.lo) + (a.lo - q * b.lo)) / b.hi};
    return pair;
}

/* the nearest integer, ties to even */
static inline F rint_F(F x)
{
    const F a = abs_F(x);
    return a < TWO_TO_MANTISSA ? copy_sign_F((a + TWO_TO_MANTISSA) - TWO_TO_MANTISSA, x) : x;
}

static inline F floor_F(F x)
{
    const F near = rint_F(x);
    return near > x ? near - 1.0 : near;
}

static inline F ceil_F(F x)
{
    const F near = rint_F(x);
    return near < x ? copy_sign_F(near + 1.0, x) : near;
}

/* the nearest integer, ties away from zero */
static inline F round_F(F x)
{
    const F a = abs_F(x), near = floor_F(a);
    return copy_sign_F(a - near >= 0.5 ? near + 1.0 : near, x);
}

/* An angle minus a multiple of pi/2: hi + lo is at most about pi/4, and the last two bits of quadrant are the multiple.
   This is exact enough for |x| <= LARGE. pi/2 has four parts. Products with the first three are exact. A sum whose
   first term is smaller than the second is exact too, so both sums may be ordered sums. */
typedef struct { F hi, lo; U quadrant; } angle_F;

static inline angle_F reduced_F(F x)
{
    const F shifted = x * TWO_OVER_PI + ROUND, n = shifted - ROUND;
    const pair_F second = ordered_sum_F(x - n * HALF_PI_1, -(n * HALF_PI_2));
    const pair_F third = ordered_sum_F(second.hi, -(n * HALF_PI_3));
    const angle_F angle = {third.hi, (second.lo + third.lo) - n * HALF_PI_4, bits_of_F(shifted)};
    return angle;
}

/* The same for every finite x, by integers (Payne and Hanek): x = m 2^e, and of the digits of 2/pi only those matter
   whose product with 2^e is not a multiple of 4. Digits have 16 bits, because these are exact in F. */
static angle_F reduced_large_F(F x)
{
    static const uint16_t digits[] = {TWO_OVER_PI_DIGITS};
    const U bits = bits_of_F(x) & ~SIGN;
    const int e = (int)(bits >> MANTISSA) - (int)BIAS - MANTISSA;
    const U m = (bits & (HIDDEN - 1)) | HIDDEN;
    const int place = e + 46 > 0 ? e + 46 : 0, first = place / 16, shift = place % 16;
    uint32_t product[WINDOW + 1] = {0};
    F sum = 0.0, rest = 0.0, unit = 1.0 / 16384.0;
    for (int j = WINDOW - 1; j >= 0; j--) {
        uint32_t carry = 0;
        for (int i = 0; i < MANTISSA_DIGITS; i++) {
            const int at = j - i;
            if (at >= 0) {
                carry += product[at] + (uint32_t)((m >> (16 * i)) & 65535u) * (uint32_t)digits[first + j];
                product[at] = carry & 65535u;
                carry >>= 16;
            }
        }
        for (int at = j - MANTISSA_DIGITS; at >= 0 && carry; at--) {
            carry += product[at];
            product[at] = carry & 65535u;
            carry >>= 16;
        }
    }
    /* shift left, so that the first two bits are the quadrant */
    for (int j = 0; j < WINDOW; j++) product[j] = ((product[j] << shift) | (product[j + 1] >> (16 - shift))) & 65535u;
    uint32_t quadrant = product[0] >> 14;
    const int negative = (product[0] >> 13) & 1u;
    product[0] &= 16383u;
    if (negative) {
        quadrant++;
        uint32_t borrow = 0;
        for (int j = WINDOW - 1; j >= 0; j--) {
            const uint32_t less = product[j] + borrow, top = j ? 65536u : 16384u;
            product[j] = less ? top - less : 0u;
            borrow = less ? 1u : 0u;
        }
    }
    for (int j = 0; j < WINDOW; j++) {
        const pair_F more = ordered_sum_F(sum, (F)product[j] * unit);
        const pair_F both = ordered_sum_F(more.hi, rest + more.lo);
        sum = both.hi;
        rest = both.lo;
        unit *= 1.0 / 65536.0;
    }
    const pair_F r = product_F(sum, HALF_PI_HI);
    const F sign = (negative != 0) != (x < 0.0) ? -1.0 : 1.0;
    const pair_F angle = ordered_sum_F(r.hi, r.lo + (sum * HALF_PI_LO + rest * HALF_PI_HI));
    const angle_F reduced = {sign * angle.hi, sign * angle.lo, x < 0.0 ? 0u - (U)quadrant : (U)quadrant};
    return reduced;
}

static inline F sin_of_F(F hi, F lo)
{
    const F z = hi * hi;
    return hi + (hi * z * sin_tail_F(z) + lo * (1.0 - 0.5 * z));
}

static inline F cos_of_F(F hi, F lo)
{
    const F z = hi * hi, half = 0.5 * z, near = 1.0 - half;
    return near + (((1.0 - near) - half) + (z * z * cos_tail_F(z) - hi * lo));
}

/* The sine and the cosine of one angle share their work. The choice by the quadrant is made by bits, so that no
   processor has to predict a branch. */
typedef struct { F sin, cos; } circle_F;

static inline circle_F circle_at_F(angle_F angle)
{
    const U sine = bits_of_F(sin_of_F(angle.hi, angle.lo)), cosine = bits_of_F(cos_of_F(angle.hi, angle.lo));
    const U exchanged = (sine ^ cosine) & (0 - (angle.quadrant & 1));
    const circle_F circle = {
        with_bits_F(sine ^ exchanged ^ ((angle.quadrant << TO_SIGN) & SIGN)),
        with_bits_F(cosine ^ exchanged ^ (((angle.quadrant + 1) << TO_SIGN) & SIGN))};
    return circle;
}

static inline F tan_at_F(angle_F angle)
{
    const F hi = angle.hi, z = hi * hi, half = 0.5 * z, near = 1.0 - half;
    const pair_F square = product_F(hi, hi);
    const F more = angle.lo * near - hi * square.lo * (1.0 / 6.0);
    const pair_F sine = ordered_sum_F(hi, hi * z * sin_tail_F(z) + more);
    const pair_F cosine = ordered_sum_F(
        near, (((1.0 - near) - half) + (z * z * cos_tail_F(z) - (hi * angle.lo + 0.5 * square.lo))));
    const U odd = angle.quadrant & 1;
    const pair_F above = {odd ? -cosine.hi : sine.hi, odd ? -cosine.lo : sine.lo};
    const pair_F below = {odd ? sine.hi : cosine.hi, odd ? sine.lo : cosine.lo};
    const pair_F tangent = ratio_F(above, below);
    return tangent.hi + tangent.lo;
}

/* sine, cosine and tangent for |x| <= LARGE; the sign of zero is that of x */
static inline circle_F sin_cos_near_F(F x)
{
    const circle_F circle = circle_at_F(reduced_F(abs_F(x)));
    const circle_F signed_circle = {with_bits_F(bits_of_F(circle.sin) ^ (bits_of_F(x) & SIGN)), circle.cos};
    return signed_circle;
}

static inline F sin_near_F(F x) { return sin_cos_near_F(x).sin; }

static inline F cos_near_F(F x) { return sin_cos_near_F(x).cos; }

static inline F tan_near_F(F x)
{
    const F value = tan_at_F(reduced_F(x));
    return abs_F(x) < TINY_ANGLE ? x : value;
}

static circle_F sin_cos_large_F(F x)
{
    const circle_F nowhere = {x - x, x - x};
    return x - x == 0.0 ? circle_at_F(reduced_large_F(x)) : nowhere;
}

static F tan_large_F(F x) { return x - x == 0.0 ? tan_at_F(reduced_large_F(x)) : x - x; }

static inline circle_F sin_cos_F(F x) { return abs_F(x) <= LARGE ? sin_cos_near_F(x) : sin_cos_large_F(x); }

static inline F sin_F(F x) { return sin_cos_F(x).sin; }

static inline F cos_F(F x) { return sin_cos_F(x).cos; }

static inline F tan_F(F x) { return abs_F(x) <= LARGE ? tan_near_F(x) : tan_large_F(x); }

/* exp(x + more) = 2^n exp(r + rest), with |r| at most about log(2)/2 */
typedef struct { F r, rest; U n; } exponential_F;

static inline exponential_F exponential_of_F(F x, F more)
{
    const F shifted = x * LOG2_E + ROUND, n = shifted - ROUND;
    const F near = x - n * LOG_2_1, less = n * LOG_2_REST - more, r = near - less;
    const exponential_F parts = {r, (near - r) - less, bits_of_F(shifted) - bits_of_F(ROUND)};
    return parts;
}

/* exp(r) - 1 - r */
static inline F exp_tail_F(F r) { return r * r * (0.5 + r * exp_end_F(r)); }

/* exp(r + rest) = hi + lo; lo need not be small */
static inline pair_F exp_pair_F(F r, F rest)
{
    const pair_F sum = ordered_sum_F(1.0, r), pair = {sum.hi, sum.lo + (rest + exp_tail_F(r))};
    return pair;
}

/* exp(r), without the rest, which is about a fifth of a unit in the last place */
static inline F exp_near_F(F r)
{
    const pair_F value = exp_pair_F(r, 0.0);
    return value.hi + value.lo;
}

static inline F exp_wide_F(F x)
{
    const F above = x < EXP_LOWEST ? EXP_LOWEST : x;
    const exponential_F e = exponential_of_F(above > EXP_HIGHEST ? EXP_HIGHEST : above, 0.0);
    return scaled_F(exp_near_F(e.r), e.n);
}

/* the same for results that are neither below the normal numbers nor infinite */
static inline F exp_usual_F(F x)
{
    const exponential_F e = exponential_of_F(x, 0.0);
    return exp_near_F(e.r) * power_of_two_F(e.n);
}

static inline F exp_F(F x) { return abs_F(x) <= EXP_USUAL ? exp_usual_F(x) : exp_wide_F(x); }

static inline F exp2_F(F x)
{
    const F above = x < -EXP2_HIGHEST ? -EXP2_HIGHEST : x, within = above > EXP2_HIGHEST ? EXP2_HIGHEST : above;
    const F shifted = within + ROUND, part = within - (shifted - ROUND);
    const pair_F r = product_F(part, LOG_2_HI);
    const pair_F value = exp_pair_F(r.hi, r.lo + part * LOG_2_LO);
    return scaled_F(value.hi + value.lo, bits_of_F(shifted) - bits_of_F(ROUND));
}

/* (exp(x) - 1) / 2 as a pair, for x between EXPM1_LOWEST and EXP_HIGHEST; half of it, because exp(x) may overflow */
static inline pair_F half_expm1_F(F x)
{
    const exponential_F e = exponential_of_F(x, 0.0);
    const F half = power_of_two_F(e.n - 1);
    const pair_F square = product_F(e.r, e.r), constant = sum_F(half, -0.5);
    const pair_F linear = ordered_sum_F(constant.hi, half * e.r), sum = sum_F(linear.hi, half * (0.5 * square.hi));
    const F rest = e.rest + (0.5 * square.lo + e.r * square.hi * exp_end_F(e.r));
    return ordered_sum_F(sum.hi, (constant.lo + linear.lo + sum.lo) + half * rest);
}

static inline F expm1_F(F x)
{
    const F above = x < EXPM1_LOWEST ? EXPM1_LOWEST : x;
    const F value = 2.0 * half_expm1_F(above > EXP_HIGHEST ? EXP_HIGHEST : above).hi;
    return abs_F(x) < TINY_ANGLE * TINY_ANGLE ? x : x > EXP_HIGHEST ? INF : value;
}

/* tanh a = a + a z p(z) / q(z) for small a, z = a^2, and tanh a = 1 - 2 / (1 + exp(2 a)) for large a, where the ratio is
   at most 1/2. There is only one division. */
static inline F tanh_F(F x)
{
    const F a = abs_F(x), z = a * a;
    const exponential_F e = exponential_of_F(2.0 * (a > 30.0 ? 30.0 : a), 0.0);
    const pair_F parts = exp_pair_F(e.r, 0.0), value = ordered_sum_F(parts.hi, parts.lo);
    const F scale = power_of_two_F(e.n);
    const pair_F sum = ordered_sum_F(scale * value.hi, 1.0);
    const int small = a < 0.55;
    const F ratio = (small ? z * tanh_above_F(z) : 2.0) / (small ? tanh_below_F(z) : sum.hi);
    const pair_F rest = ordered_sum_F(1.0, -ratio);
    const F large = rest.hi + (rest.lo + 0.5 * ratio * ratio * (sum.lo + scale * value.lo));
    return copy_sign_F(small ? a + a * ratio : large, x);
}

/* 1 / (1 + exp(-x)), the logistic function */
static inline F logistic_F(F x)
{
    const F a = abs_F(x), most = a > -EXP_LOWEST ? -EXP_LOWEST : a, some = most > 40.0 ? 40.0 : most;
    const exponential_F all = exponential_of_F(-most, 0.0), e = exponential_of_F(-some, 0.0);
    const pair_F start = exp_pair_F(e.r, e.rest), whole = exp_pair_F(all.r, all.rest);
    const F scale = power_of_two_F(e.n);
    const pair_F small = ordered_sum_F(scale * start.hi, scale * start.lo);
    const pair_F sum = ordered_sum_F(1.0, small.hi), below = {sum.hi, sum.lo + small.lo};
    const pair_F above = {x < 0.0 ? small.hi : 1.0, x < 0.0 ? small.lo : 0.0};
    const pair_F value = ratio_F(above, below);
    const F near = value.hi + value.lo, far = scaled_F(whole.hi + whole.lo, all.n);
    return x != x ? x : x < -40.0 ? far : near;
}

/* exp(a) = 2^n (hi + lo), and half of exp(-a) in the same unit, for the hyperbolic functions */
typedef struct { pair_F value; F inverse; U n; } both_ways_F;

static inline both_ways_F both_ways_of_F(F a)
{
    const exponential_F e = exponential_of_F(a, 0.0);
    const pair_F sum = exp_pair_F(e.r, e.rest), value = ordered_sum_F(sum.hi, sum.lo);
    const F inverse = 1.0 / value.hi, down = power_of_two_F(a > 40.0 ? (U)0 - 60 : (U)0 - e.n);
    const both_ways_F both = {value, (inverse - value.lo * inverse * inverse) * down * down, e.n};
    return both;
}

static inline F cosh_F(F x)
{
    const F a = abs_F(x);
    const both_ways_F e = both_ways_of_F(a > COSH_HIGHEST ? COSH_HIGHEST : a);
    const pair_F sum = ordered_sum_F(e.value.hi, e.inverse);
    return scaled_F(sum.hi + (sum.lo + e.value.lo), e.n - 1);
}

static inline F sinh_F(F x)
{
    const F a = abs_F(x), z = a * a;
    const both_ways_F e = both_ways_of_F(a > COSH_HIGHEST ? COSH_HIGHEST : a);
    const pair_F difference = ordered_sum_F(e.value.hi, -e.inverse);
    const F large = scaled_F(difference.hi + (difference.lo + e.value.lo), e.n - 1);
    return copy_sign_F(a < 1.0 ? a + a * z * sinh_tail_F(z) : large, x);
}

/* A positive number as 2^n m, with m between sqrt(1/2) and sqrt(2) */
typedef struct { F n, m; U exponent; } scientific_F;

static inline scientific_F scientific_of_F(F x)
{
    const int tiny = x < SMALLEST;
    const U bits = bits_of_F(tiny ? x * TWO_TO_LIFT : x);
    const U above = (bits - SQRT_HALF_BITS + (BIAS << MANTISSA)) >> MANTISSA;
    const U n = above - BIAS;
    const scientific_F parts = {
        with_bits_F(bits_of_F(ROUND) + n) - ROUND - (tiny ? LIFT : 0.0), with_bits_F(bits - (n << MANTISSA)), n};
    return parts;
}

/* log(2^n (1 + f) + a correction) */
static inline F log_of_F(F n, F f, F correction)
{
    const F s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    return n * LOG_2_1 - ((half - (s * (half + z * log_tail_F(z)) + (n * LOG_2_REST + correction))) - f);
}

static inline F log_F(F x)
{
    const scientific_F parts = scientific_of_F(x);
    const F value = log_of_F(parts.n, parts.m - 1.0, 0.0);
    return x > 0.0 ? (x < INF ? value : x) : x == 0.0 ? -INF : QUIET_NAN;
}

static inline F log1p_F(F x)
{
    const F u = 1.0 + x, lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x);
    const scientific_F parts = scientific_of_F(u);
    const F value = log_of_F(parts.n, parts.n == 0.0 ? x : parts.m - 1.0, parts.n == 0.0 ? 0.0 : lost / u);
    const F finite = x < INF ? value : x;
    return abs_F(x) < TINY_ANGLE * TINY_ANGLE ? x : x > -1.0 ? finite : x == -1.0 ? -INF : QUIET_NAN;
}

static inline F pow_F(F x, F y)
{
    const F a = abs_F(x), limited = abs_F(y) > HUGE_POWER ? copy_sign_F(HUGE_POWER, y) : y;
    const scientific_F parts = scientific_of_F(a);
    const F f = parts.m - 1.0, n = parts.n;
    const pair_F above = {f, 0.0};
    const pair_F s = ratio_F(above, ordered_sum_F(2.0, f));
    const pair_F square = product_F(s.hi, s.hi), cube = product_F(square.hi, s.hi);
    const F cube_lo = cube.lo + (square.hi * s.lo + (square.lo + 2.0 * s.hi * s.lo) * s.hi);
    const pair_F third = product_F(TWO_THIRDS_HI, cube.hi);
    const F third_lo = third.lo + (TWO_THIRDS_HI * cube_lo + TWO_THIRDS_LO * cube.hi);
    const pair_F first = sum_F(n * LOG_2_1, 2.0 * s.hi), both = sum_F(first.hi, third.hi);
    const F tail = cube.hi * square.hi * log_end_F(square.hi);
    const F rest = (first.lo + both.lo) + ((2.0 * s.lo + third_lo + n * LOG_2_2) + (tail + n * LOG_2_3));
    const pair_F log = ordered_sum_F(both.hi, rest);
    const pair_F power = product_F(limited, log.hi);
    const F high = power.hi > EXP_HIGHEST ? EXP_HIGHEST : power.hi, low = high < EXP_LOWEST ? EXP_LOWEST : high;
    const exponential_F e = exponential_of_F(low, low == power.hi ? power.lo + limited * log.lo : 0.0);
    const pair_F value = exp_pair_F(e.r, e.rest);
    const F finite = scaled_F(value.hi + value.lo, e.n);
    const F up = y < 0.0 ? 0.0 : INF, down = y < 0.0 ? INF : 0.0;
    const F size = a == 0.0 ? down : a == INF ? up : finite;
    const int whole = rint_F(y) == y, odd = (whole & (rint_F(0.5 * y) != 0.5 * y)) & (y - y == 0.0);
    const F result = odd ? copy_sign_F(size, x) : ((x < 0.0) & (whole == 0) & (a < INF)) ? QUIET_NAN : size;
    return ((x == 1.0) | (y == 0.0)) ? 1.0 : ((x != x) | (y != y)) ? QUIET_NAN : result;
}

static inline F cbrt_F(F x)
{
    const F a = abs_F(x);
    const scientific_F parts = scientific_of_F(a);
    const F shifted = parts.n * (1.0 / 3.0) + ROUND, third = shifted - ROUND, left = parts.n - 3.0 * third;
    const F m = parts.m * (left > 0.5 ? 2.0 : left < -0.5 ? 0.5 : 1.0), start = cbrt_start_F(m);
    const F cube = start * start * start, better = start * ((cube + (m + m)) / (cube + cube + m));
    const F again = better * better * better, near = better * ((again + (m + m)) / (again + again + m));
    const pair_F square = product_F(near, near), whole = product_F(square.hi, near);
    const F value = near + ((m - whole.hi) - (whole.lo + square.lo * near)) / (3.0 * square.hi);
    const F sized = value * power_of_two_F(bits_of_F(shifted) - bits_of_F(ROUND));
    return ((a == 0.0) | (a - a != 0.0)) ? x : copy_sign_F(sized, x);
}

/* the angle of the point (x, y) as a pair, for 0 <= y <= x, x about 1 */
static inline pair_F atan_of_F(F y, F x)
{
    const int beyond = y > TAN_PI_8 * x;
    const pair_F difference = sum_F(y, -x), both = sum_F(x, y);
    const pair_F above = {beyond ? difference.hi : y, beyond ? difference.lo : 0.0};
    const pair_F below = {beyond ? both.hi : x, beyond ? both.lo : 0.0};
    const pair_F q = ratio_F(above, below);
    const F z = q.hi * q.hi, more = abs_F(q.hi) < TINY_RATIO ? 0.0 : q.lo * (1.0 - z);
    const pair_F start = ordered_sum_F(beyond ? QUARTER_PI_HI : 0.0, q.hi);
    const F rest = q.hi * z * atan_tail_F(z) + (more + (beyond ? QUARTER_PI_LO : 0.0));
    return ordered_sum_F(start.hi, start.lo + rest);
}

static inline F atan_F(F x)
{
    const F a = abs_F(x), large = a > HUGE_RATIO ? HUGE_RATIO : a;
    const int steep = a > 1.0;
    const pair_F angle = atan_of_F(steep ? 1.0 : large, steep ? large : 1.0);
    const pair_F other = ordered_sum_F(HALF_PI_HI, -angle.hi);
    const F value = steep ? other.hi + (other.lo + (HALF_PI_LO - angle.lo)) : angle.hi + angle.lo;
    return x != x ? x : a < TINY_ANGLE ? x : copy_sign_F(value, x);
}

static inline F atan2_F(F y, F x)
{
    const F ax = abs_F(x), ay = abs_F(y), large = ax > ay ? ax : ay;
    const F scale = large > FAR ? 1.0 / FAR : large < 1.0 / FAR ? FAR : 1.0;
    const F right = large == INF ? (ax == INF ? 1.0 : 0.0) : large == 0.0 ? 1.0 : ax * scale;
    const F up = large == INF ? (ay == INF ? 1.0 : 0.0) : ay * scale;
    const int steep = up > right;
    const pair_F angle = atan_of_F(steep ? right : up, steep ? up : right);
    const pair_F other = ordered_sum_F(HALF_PI_HI, -angle.hi);
    const pair_F first = {steep ? other.hi : angle.hi, steep ? other.lo + (HALF_PI_LO - angle.lo) : angle.lo};
    const pair_F beyond = ordered_sum_F(2.0 * HALF_PI_HI, -first.hi);
    const F left = beyond.hi + (beyond.lo + (2.0 * HALF_PI_LO - first.lo));
    const F value = bits_of_F(x) & SIGN ? left : first.hi + first.lo;
    return ((x != x) | (y != y)) ? QUIET_NAN : copy_sign_F(value, y);
}

/* For |x| > 1/2, asin and acos use the half angle s = sqrt((1 - |x|) / 2). value = s or |x|, and
   asin(value) = value + tail. */
typedef struct { F value, tail; } arc_F;

static inline arc_F arc_of_F(F a)
{
    const int beyond = a > 0.5;
    const F z = beyond ? 0.5 - 0.5 * a : a * a, root = sqrt_F(z), s = beyond ? root : a;
    const pair_F square = product_F(root, root);
    const F more = (beyond & (root != 0.0)) ? ((z - square.hi) - square.lo) / (root + root) : 0.0;
    const arc_F arc = {s, s * z * asin_tail_F(z) + more * (1.0 + 0.5 * z)};
    return arc;
}

static inline F asin_F(F x)
{
    const F a = abs_F(x);
    const arc_F arc = arc_of_F(a);
    const pair_F start = ordered_sum_F(HALF_PI_HI, -2.0 * arc.value);
    const F beyond = start.hi + (start.lo + (HALF_PI_LO - 2.0 * arc.tail));
    return copy_sign_F(a > 0.5 ? beyond : arc.value + arc.tail, x);
}

static inline F acos_F(F x)
{
    const F a = abs_F(x);
    const arc_F arc = arc_of_F(a);
    const F sign = x < 0.0 ? -1.0 : 1.0;
    const pair_F middle = ordered_sum_F(HALF_PI_HI, -sign * arc.value);
    const pair_F left = ordered_sum_F(2.0 * HALF_PI_HI, -2.0 * arc.value);
    const F beyond = x < 0.0 ? left.hi + (left.lo + (2.0 * HALF_PI_LO - 2.0 * arc.tail)) : 2.0 * (arc.value + arc.tail);
    return a > 0.5 ? beyond : middle.hi + (middle.lo + (HALF_PI_LO - sign * arc.tail));
}

/* erfc for a between ERF_SPLIT and ERFC_HIGHEST */
static inline F erfc_of_F(F a)
{
    const pair_F square = product_F(a, a);
    const exponential_F e = exponential_of_F(-square.hi, -square.lo);
    const pair_F value = exp_pair_F(e.r, e.rest);
    const F ratio = erfc_end_F((a - 3.0) / (a + 3.0)) / (a + 0.5);
    return scaled_F((value.hi + value.lo) * ratio, e.n);
}

static inline F erf_F(F x)
{
    const F a = abs_F(x), z = x * x, above = a < 1.25 ? 1.25 : a, t = a - 1.0;
    const pair_F slope = product_F(ERF_SLOPE_HI, t), start = ordered_sum_F(ERF_MIDDLE_HI, slope.hi);
    const F rest = (slope.lo + t * ERF_SLOPE_LO) + t * t * erf_middle_F(t);
    const F middle = start.hi + (start.lo + (ERF_MIDDLE_LO + rest)), end = 1.0 - erfc_of_F(above > 6.0 ? 6.0 : above);
    const F first = x + x * erf_start_F(z), second = copy_sign_F(a < 1.25 ? middle : end, x);
    return x != x ? x : a < ERF_SPLIT ? first : second;
}

static inline F erfc_F(F x)
{
    const F a = abs_F(x), z = x * x, above = a < ERF_SPLIT ? ERF_SPLIT : a;
    const F end = erfc_of_F(above > ERFC_HIGHEST ? ERFC_HIGHEST : above), start = x * erf_start_F(z);
    const F beyond = 0.5 - ((x - 0.5) + start), below = 1.0 - (x + start), left = 2.0 - end;
    const F middle = x > 0.5 ? beyond : below, far = x < 0.0 ? left : end;
    return x != x ? x : a < ERF_SPLIT ? middle : far;
}

static inline F asinh_F(F x)
{
    const F a = abs_F(x), some = a > TWO_TO_MANTISSA ? 1.0 : a, square = some * some;
    const F value = log1p_F(some + square / (1.0 + sqrt_F(square + 1.0)));
    return x != x ? x : copy_sign_F(a > TWO_TO_MANTISSA ? log_F(a) + LOG_2_HI : value, x);
}

static inline F acosh_F(F x)
{
    const F some = x > TWO_TO_MANTISSA ? 1.0 : x, t = some - 1.0;
    const F value = log1p_F(t + sqrt_F(t * (2.0 + t)));
    return x != x ? x : x < 1.0 ? QUIET_NAN : x > TWO_TO_MANTISSA ? log_F(x) + LOG_2_HI : value;
}

static inline F atanh_F(F x)
{
    const F a = abs_F(x);
    return copy_sign_F(0.5 * log1p_F(2.0 * a / (1.0 - a)), x);
}
