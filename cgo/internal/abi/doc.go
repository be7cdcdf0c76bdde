// Package abi has the forms that libibverbs and package verbs give to the same
// thing, for the drivers that use structs of libibverbs. It is empty without the build
// tag "verbs".
package abi
