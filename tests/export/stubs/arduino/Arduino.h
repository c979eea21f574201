/* The few names of Arduino that the exported sketches use, for a program on this machine that only tests them. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define PROGMEM
#define F(text) (text)
#define A0 14
#define pgm_read_float(place) (*(const float *)(place))
#define constrain(value, low, high) ((value) < (low) ? (low) : ((value) > (high) ? (high) : (value)))

struct Port {
  void begin(long) {}
  void print(const char *text) { printf("%s", text); }
  void println(const char *text) { printf("%s\n", text); }
  void println(long number) { printf("%ld\n", number); }
  void println(int number) { printf("%d\n", number); }
  void println(unsigned number) { printf("%u\n", number); }
  void println(unsigned long number) { printf("%lu\n", number); }
  void println(double number, int digits) { printf("%.*f\n", digits, number); }
};
static Port Serial;
static uint32_t clock_us;
static inline uint32_t micros() { return clock_us; }
static inline int analogRead(int) { return 512; }
static inline void analogWrite(int, int) {}
