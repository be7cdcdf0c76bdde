//go:build !race

package pe

const checksGoroutine = false
