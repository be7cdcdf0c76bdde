/* The version of this source tree for C, the same as Number in number.go: a test compares them. */
#ifndef VERBENA_VERSION
#define VERBENA_VERSION "0.1.0-dev"
#endif
