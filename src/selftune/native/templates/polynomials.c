/* Polynomials of the elementary functions: written by tests/native/make_polynomials.py; do not edit. */

/* p of sin r = r + r^3 p(r^2) */
static inline float sin_tail_float(float z)
{
    const float z2 = z * z;
    return (-1.6666667e-01f + z * 8.333332e-03f) + z2 * (-1.9840083e-04f + z * 2.7249314e-06f);
}

/* p of sin r = r + r^3 p(r^2) */
static inline double sin_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((-0.16666666666666666 + z * 0.008333333333333331) + z2 * (-0.00019841269841265017 + z *
        2.755731921930192e-06)) + z4 * ((-2.5052106219521895e-08 + z * 1.6058529572267877e-10) + z2 *
        -7.586576588171073e-13);
}

/* p of cos r = 1 - r^2/2 + r^4 p(r^2) */
static inline float cos_tail_float(float z)
{
    const float z2 = z * z;
    return (4.1666664e-02f + z * -1.38883e-03f) + z2 * 2.4547437e-05f;
}

/* p of cos r = 1 - r^2/2 + r^4 p(r^2) */
static inline double cos_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((0.041666666666666664 + z * -0.0013888888888887382) + z2 * (2.480158729874307e-05 + z *
        -2.7557317260008837e-07)) + z4 * (2.0876143827993133e-09 + z * -1.1382456778061306e-11);
}

/* p of exp r = 1 + r + r^2/2 + r^3 p(r) */
static inline float exp_end_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((1.6666667e-01f + z * 4.1666552e-02f) + z2 * (8.333321e-03f + z * 1.392625e-03f)) + z4 * 1.9882774e-04f;
}

/* p of exp r = 1 + r + r^2/2 + r^3 p(r) */
static inline double exp_end_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    return (((0.16666666666666669 + z * 0.041666666666666664) + z2 * (0.008333333333330039 + z *
        0.0013888888888886537)) + z4 * ((0.00019841269863171557 + z * 2.4801587317228724e-05) + z2 *
        (2.7557268276905696e-06 + z * 2.7557282838800484e-07))) + z8 * (2.5100472505694996e-08 + z *
        2.09112987659402e-09);
}

/* p of 2 atanh s = 2 s + s^3 p(s^2) */
static inline float log_tail_float(float z)
{
    const float z2 = z * z;
    return (6.6666687e-01f + z * 3.9988735e-01f) + z2 * 2.9582024e-01f;
}

/* p of 2 atanh s = 2 s + s^3 p(s^2) */
static inline double log_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((0.666666666666667 + z * 0.3999999999989827) + z2 * (0.2857142862653362 + z * 0.22222211043776857)) +
        z4 * ((0.18182895750119193 + z * 0.1533150161114533) + z2 * 0.1461916613488797);
}

/* p of 2 atanh s = 2 s + 2/3 s^3 + s^5 p(s^2) */
static inline float log_end_float(float z)
{
    const float z2 = z * z;
    return (4.0000015e-01f + z * 2.85622e-01f) + z2 * 2.3049854e-01f;
}

/* p of 2 atanh s = 2 s + 2/3 s^3 + s^5 p(s^2) */
static inline double log_end_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((0.4 + z * 0.28571428571429375) + z2 * (0.22222222221649277 + z * 0.18181818336889324)) + z4 *
        ((0.15384594802772 + z * 0.13334813373687013) + z2 * (0.11706004128016817 + z * 0.11725604536475413));
}

/* p of atan r = r + r^3 p(r^2) */
static inline float atan_tail_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((-3.333333e-01f + z * 1.999954e-01f) + z2 * (-1.4263931e-01f + z * 1.07434675e-01f)) + z4 *
        -6.451055e-02f;
}

/* p of atan r = r + r^3 p(r^2) */
static inline double atan_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    return (((-0.3333333333333333 + z * 0.19999999999999804) + z2 * (-0.1428571428565962 + z *
        0.11111111105135144)) + z4 * ((-0.0909090875249078 + z * 0.07692296345833015) + z2 * (-0.06666424361404927
        + z * 0.05878922970309668))) + z8 * ((-0.052304098866177415 + z * 0.045513908032899016) + z2 *
        (-0.03456535729190067 + z * 0.01627999005782057));
}

/* p of asin r = r + r^3 p(r^2) */
static inline float asin_tail_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((1.6666666e-01f + z * 7.500095e-02f) + z2 * (4.459932e-02f + z * 3.1101728e-02f)) + z4 *
        (1.7143717e-02f + z * 3.3700727e-02f);
}

/* p of asin r = r + r^3 p(r^2) */
static inline double asin_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    return (((0.16666666666666669 + z * 0.07499999999998425) + z2 * (0.04464285714637338 + z *
        0.030381944137085216)) + z4 * ((0.022372173002005596 + z * 0.017352391265909227) + z2 *
        (0.013971235301124539 + z * 0.011478952690257387))) + z8 * (((0.010324318288744113 + z *
        0.00545087818772055) + z2 * (0.017419357964884856 + z * -0.014881409392818066)) + z4 * 0.02877844261259304);
}

/* p of sinh r = r + r^3 p(r^2) */
static inline float sinh_tail_float(float z)
{
    const float z2 = z * z;
    return (1.6666667e-01f + z * 8.333339e-03f) + z2 * (1.9838095e-04f + z * 2.8063312e-06f);
}

/* p of sinh r = r + r^3 p(r^2) */
static inline double sinh_tail_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((0.16666666666666666 + z * 0.008333333333333299) + z2 * (0.00019841269841324471 + z *
        2.7557319191250885e-06)) + z4 * ((2.50521177239532e-08 + z * 1.6057676882739475e-10) + z2 *
        7.746278224810715e-13);
}

/* p of erf r = r + r p(r^2) */
static inline float erf_start_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((1.2837917e-01f + z * -3.761262e-01f) + z2 * (1.12833865e-01f + z * -2.6835099e-02f)) + z4 *
        (5.1152967e-03f + z * -6.7562005e-04f);
}

/* p of erf r = r + r p(r^2) */
static inline double erf_start_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    return (((0.1283791670955126 + z * -0.37612638903183754) + z2 * (0.11283791670955087 + z *
        -0.026866170645118426)) + z4 * ((0.005223977625221888 + z * -0.0008548327001109076) + z2 *
        (0.00012055331543818947 + z * -1.4925589331989037e-05))) + z8 * ((1.646038204353174e-06 + z *
        -1.6333213091801684e-07) + z2 * (1.4413751635274794e-08 + z * -9.502408872183395e-10));
}

/* p of erf(1 + r) = erf(1) + erf'(1) r + r^2 p(r) */
static inline float erf_middle_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((-4.151075e-01f + z * 1.383691e-01f) + z2 * (6.918462e-02f + z * -6.917708e-02f)) + z4 *
        ((4.6074893e-03f + z * 1.4932569e-02f) + z2 * -4.633943e-03f);
}

/* p of erf(1 + r) = erf(1) + erf'(1) r + r^2 p(r) */
static inline double erf_middle_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    return (((-0.4151074974205947 + z * 0.1383691658068649) + z2 * (0.0691845829034348 + z * -0.06918458290343339))
        + z4 * ((0.004612305526340915 + z * 0.01515471816002287) + z2 * (-0.004777030675040684 + z *
        -0.0018851883899626762))) + z8 * (((0.0012262854977042345 + z * 8.552483123044807e-05) + z2 *
        (-0.00020000989627395662 + z * 1.8698370288133163e-05)) + z4 * (2.3218899709696268e-05 + z *
        -5.2806348790024825e-06));
}

/* p of erfc x = exp(-x^2) p((x - 3) / (x + 3)) / (x + 1/2) */
static inline float erfc_end_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    const float z8 = z4 * z4;
    return (((6.26504e-01f + z * -6.781055e-02f) + z2 * (-2.3781106e-02f + z * 6.482255e-02f)) + z4 *
        ((-5.9638232e-02f + z * 3.4155123e-02f) + z2 * (-1.18723875e-02f + z * 1.2531823e-03f))) + z8 *
        (8.999052e-04f + z * -3.4460635e-04f);
}

/* p of erfc x = exp(-x^2) p((x - 3) / (x + 3)) / (x + 1/2) */
static inline double erfc_end_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    const double z8 = z4 * z4;
    const double z16 = z8 * z8;
    return ((((0.6265040291348648 + z * -0.0678105530622906) + z2 * (-0.023781147176725605 + z *
        0.06482257935138226)) + z4 * ((-0.059636831707636145 + z * 0.034154013671910746) + z2 *
        (-0.011885257459852552 + z * 0.0012646959096169002))) + z8 * (((0.0009443451869405089 + z *
        -0.00038991615515225484) + z2 * (-5.257995450698874e-05 + z * 6.254982389124044e-05)) + z4 *
        ((2.4749648396903916e-06 + z * -1.0051031214584522e-05) + z2 * (-3.661701084058419e-07 + z *
        1.738649853345261e-06)))) + z16 * (((1.7817626265320372e-07 + z * -3.1324555480497765e-07) + z2 *
        (-6.797294196028952e-08 + z * 5.63584632039246e-08)) + z4 * ((1.5511992783331895e-08 + z *
        -8.861880208266343e-09) + z2 * -3.961566133036561e-10));
}

/* p of the cube root of r */
static inline float cbrt_start_float(float z)
{
    const float z2 = z * z;
    const float z4 = z2 * z2;
    return ((4.623623e-01f + z * 8.2360595e-01f) + z2 * (-3.8294533e-01f + z * 1.10865116e-01f)) + z4 *
        -1.2861364e-02f;
}

/* p of the cube root of r */
static inline double cbrt_start_double(double z)
{
    const double z2 = z * z;
    const double z4 = z2 * z2;
    return ((0.46236228432877796 + z * 0.823605972140909) + z2 * (-0.3829453286685525 + z * 0.11086511935111089)) +
        z4 * -0.012861363516195937;
}

/* p of tanh r = r + r^3 p(r^2) / q(r^2) */
static inline float tanh_above_float(float z)
{
    return -3.333333e-01f + z * -1.5590696e-03f;
}

/* q of tanh r = r + r^3 p(r^2) / q(r^2) */
static inline float tanh_below_float(float z)
{
    return 1.0e+00f + z * 4.0467334e-01f;
}

/* p of tanh r = r + r^3 p(r^2) / q(r^2) */
static inline double tanh_above_double(double z)
{
    const double z2 = z * z;
    return (-0.3333333333333333 + z * -0.02050194322696069) + z2 * -0.00019931736085123053;
}

/* q of tanh r = r + r^3 p(r^2) / q(r^2) */
static inline double tanh_below_double(double z)
{
    const double z2 = z * z;
    return (1.0 + z * 0.4615058296808811) + z2 * (0.02329552205018229 + z * 0.00020668295584863795);
}
