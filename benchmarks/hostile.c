/* Hostile inputs for a controller: random bits, NaN, infinities, stuck and huge numbers, wrong order of the calls, and
   switches of the mode. counts has the number of each event; the names are those of EVENTS in hostile.py. */
enum {
    STEPS, REFUSED, SAFE, GATED, ROLLBACKS, U_NOT_FINITE, U_OUTSIDE, THETA_OUTSIDE, ESTIMATE_OUTSIDE, WRONG_CODE,
    WEDGED
};

static uint64_t seed_of_draw;

static uint64_t draw(void)
{
    seed_of_draw ^= seed_of_draw >> 12;
    seed_of_draw ^= seed_of_draw << 25;
    seed_of_draw ^= seed_of_draw >> 27;
    return seed_of_draw * UINT64_C(2685821657736338717);
}

static REAL uniform(void) { return (REAL)((double)(draw() >> 11) / 4503599627370496.0 - 1.0); }

static int is_bad(REAL number) { return !(number - number == 0); }

static REAL random_bits(void)
{
    union { uint64_t word; uint32_t half; REAL number; } any;
    any.word = draw();
    if (sizeof(REAL) == 4) any.half = (uint32_t)(draw() >> 32);
    return any.number;
}

static REAL hostile_number(int kind, REAL good, REAL before)
{
    switch (kind) {
    case 1: return NAN;
    case 2: return draw() & 1 ? (REAL)INFINITY : -(REAL)INFINITY;
    case 3: return random_bits();
    case 4: return uniform() * (REAL)1e30;
    case 5: return before;
    case 6: return draw() & 1 ? (REAL)0 : (REAL)1e-42;
    case 7: return good * (REAL)100; /* an outlier that may be inside its limit */
    default: return good;
    }
}

void hostile(int64_t steps, uint64_t seed, const REAL *scale, const REAL *limit, const REAL *u_low,
             const REAL *u_high, const REAL *theta_low, const REAL *theta_high, const REAL *a_low, const REAL *a_high,
             int64_t *counts);
void hostile(int64_t steps, uint64_t seed, const REAL *scale, const REAL *limit, const REAL *u_low,
             const REAL *u_high, const REAL *theta_low, const REAL *theta_high, const REAL *a_low, const REAL *a_high,
             int64_t *counts)
{
    static agent_state s;
    static agent_info info;
    REAL x[AGENT_Q] = {0}, f[AGENT_K] = {0}, u[AGENT_M];
    int kind = 0;
    int64_t left = 0, refused_in_a_row = 0;
    seed_of_draw = seed * 2 + 1;
    agent_init(&s);
    for (int64_t step = 0; step < steps; step++) {
        if (left-- == 0) {
            kind = draw() % 10 < 5 ? 0 : (int)(draw() % 8);
            left = (int64_t)(draw() % 400);
        }
        const int one = kind != 0 && draw() % 2 ? (int)(draw() % AGENT_Q) : -1; /* all sensors, or one of them */
        int all_good = kind == 0; /* a stuck sensor may be refused */
        for (int i = 0; i < AGENT_Q; i++) {
            const int now = one < 0 || one == i ? kind : 0;
            x[i] = hostile_number(now, scale[i] * uniform(), x[i]);
            all_good &= !is_bad(x[i]) && (x[i] < 0 ? -x[i] : x[i]) <= scale[i];
        }
        int32_t t = (int32_t)step;
        if (draw() % 1000 == 0) t = (int32_t)(uint32_t)draw();
        const int code = agent_act(&s, x, t, u, draw() % 8 ? &info : 0);
        counts[STEPS]++;
        counts[REFUSED] += code != AGENT_OK;
        counts[SAFE] += code == AGENT_SAFE;
        for (int i = 0; i < AGENT_M; i++) {
            counts[U_NOT_FINITE] += is_bad(u[i]);
            counts[U_OUTSIDE] += !(u[i] >= u_low[i] && u[i] <= u_high[i]);
        }
        for (int i = 0; i < AGENT_D; i++)
            counts[THETA_OUTSIDE] += !(s.theta[i] >= theta_low[i] && s.theta[i] <= theta_high[i]);
        for (int i = 0; i < AGENT_P; i++) {
            const REAL a = s.a_hat[i];
            counts[ESTIMATE_OUTSIDE] += is_bad(a) || !(a >= a_low[i] && a <= a_high[i]);
        }
        for (int i = 0; i < AGENT_Q; i++)
            counts[WRONG_CODE] += code == AGENT_OK && !(x[i] >= -limit[i] && x[i] <= limit[i]);
        counts[WRONG_CODE] += code < 0 || code > 7 || code == 3;
        refused_in_a_row = code == AGENT_OK || code == AGENT_SAFE || !all_good ? 0 : refused_in_a_row + 1;
        counts[WEDGED] += refused_in_a_row == 100;
        const int calls = (int)(draw() % 4); /* none, one or more observations */
        for (int call = 1; call < calls; call++) {
            const int what = draw() % 3 ? 0 : kind;
            for (int i = 0; i < AGENT_K; i++) f[i] = hostile_number(what, uniform(), f[i]);
            const int seen = draw() % 2 ? agent_observe(&s, f) : agent_observe_state(&s, x);
            counts[GATED] += seen == AGENT_OUTLIER;
            counts[WRONG_CODE] += seen == AGENT_OK && code != AGENT_OK;
        }
        switch (draw() % 4000) {
        case 0: agent_pause(&s); break;
        case 1: agent_freeze(&s); break;
        case 2: case 3: agent_resume(&s); break;
        case 4: agent_restore(&s); break;
        case 5: case 6: case 7: case 8: case 9: case 10: case 11: case 12: agent_clear(&s); break;
        default: break;
        }
    }
    counts[ROLLBACKS] = s.guard_window_rollbacks;
}
