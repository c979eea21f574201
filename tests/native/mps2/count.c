/* What an exported controller costs on the board: `-DNAME=arm` for arm.h, with the inputs of its replay.h.

   With `-icount shift=0` an instruction takes one virtual nanosecond and a tick of the board's timer, at 25 MHz, forty.
   Each call is made REPEATS = 40 times from the same state, so that ticks a step are instructions. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define QUOTED(text) #text
#define HEADER(name) QUOTED(name.h)
#define JOINED(name, suffix) name##suffix
#define MEMBER(name, suffix) JOINED(name, suffix)
#include HEADER(NAME)
#include "replay.h"

#define REPEATS 40
#define PATTERN 0xA5C3F00Du

typedef MEMBER(NAME, _state) controller;

static controller state, before;
static float control[sizeof replay_u[0] / sizeof replay_u[0][0]];
extern uint32_t stack_limit[];

struct timer { volatile uint32_t control, value, reload; };
static struct timer *const timer = (struct timer *)0x40000000u; /* CMSDK timer 0, counting down */

/* Ticks of REPEATS times { back to the state before; call }. The barrier keeps the empty call's copies. */
#define TICKS(ticks, call)                                 \
    do {                                                   \
        const uint32_t start = timer->value;               \
        for (int repeat = 0; repeat < REPEATS; repeat++) { \
            state = before;                                \
            __asm__ volatile("" ::: "memory");             \
            call;                                          \
        }                                                  \
        (ticks) = start - timer->value;                    \
    } while (0)

#define ACT(i) MEMBER(NAME, _act)(&state, replay_x[i], REPLAY_T(i), control, NULL)
#define OBSERVE(i) MEMBER(NAME, _observe)(&state, replay_f_obs[i])

static int count(double *act, double *observe) {
    uint64_t act_sum = 0, observe_sum = 0, empty_sum = 0;
    int code = 0;
    MEMBER(NAME, _init)(&before);
    for (int i = 0; i < REPLAY_STEPS; i++) {
        uint32_t ticks;
        TICKS(ticks, (void)0);
        empty_sum += ticks;
        TICKS(ticks, code |= ACT(i));
        act_sum += ticks;
        before = state;
        TICKS(ticks, code |= OBSERVE(i));
        observe_sum += ticks;
        before = state;
    }
    *act = ((double)act_sum - (double)empty_sum) / REPLAY_STEPS;
    *observe = ((double)observe_sum - (double)empty_sum) / REPLAY_STEPS;
    return code;
}

/* Bytes of stack below this function's own: fill it with a pattern, run, and see how far down that is gone. */
__attribute__((noinline)) static int deepest(size_t *bytes) {
    uint32_t *top, *low = stack_limit;
    int code = 0;
    __asm__ volatile("mov %0, sp" : "=r"(top));
    for (volatile uint32_t *word = low; word != top; word++) *word = PATTERN;
    MEMBER(NAME, _init)(&state);
    for (int i = 0; i < REPLAY_STEPS; i++) {
        code |= ACT(i);
        code |= OBSERVE(i);
    }
    while (low != top && *(volatile uint32_t *)low == PATTERN) low++;
    *bytes = (size_t)(top - low) * sizeof *low;
    return code;
}

int main(void) {
    double act, observe;
    size_t stack;
    timer->reload = timer->value = UINT32_MAX;
    timer->control = 1;
    int code = count(&act, &observe);
    code |= deepest(&stack);
    printf("act %.1f\nobserve %.1f\nstack %lu\nstate %lu\n", act, observe, (unsigned long)stack,
           (unsigned long)sizeof(controller));
    return code;
}
