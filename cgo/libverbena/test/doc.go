// Package test has the tests of the library for programs in C and other languages: rdma-core's
// own test suite, and programs in C. They build the library, and preload it.
package test
