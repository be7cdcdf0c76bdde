// Package pe is the progress engine: it drives contexts through their states
// and runs the callbacks of their tasks.
package pe
