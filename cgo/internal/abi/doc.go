// Package abi converts between types of libibverbs and package verbs, for the drivers that use
// structs of libibverbs. It is empty without the build tag "verbs".
package abi
