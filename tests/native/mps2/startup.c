/* From reset to main and back out: newlib does the input, output and exit by semihosting (rdimon). */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];

int main(void);
void initialise_monitor_handles(void);
void _exit(int code);
void _fini(void);
void reset(void);

/* newlib's exit wants one. */
void _fini(void) {}

/* A fault ends the run with an error; QEMU would otherwise wait for ever. */
static void fault(void) { _exit(1); }

void reset(void) {
    volatile uint32_t *const cpacr = (volatile uint32_t *)0xE000ED88u;
    *cpacr |= 0xFu << 20; /* the floating-point unit on */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    for (uint32_t *to = data_start, *from = data_load; to != data_end;) *to++ = *from++;
    for (uint32_t *to = bss_start; to != bss_end;) *to++ = 0;
    initialise_monitor_handles();
    exit(main());
}

/* Reset, NMI, and the four faults; no interrupt is ever enabled. */
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handlers[6])(void);
} vectors = {stack_top, {reset, fault, fault, fault, fault, fault}};
