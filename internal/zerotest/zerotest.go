// Package zerotest calls everything that a zero value offers, for tests: a program that
// forgot to make an object gets errors, and no panic.
package zerotest

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Check calls every exported method of the zero values that the pointers point to: with
// zero arguments, and with functions that do nothing. It fails the test for each that
// panics, and for each exported type of the package in the present folder that has
// methods and is not among the values. Of generic types, any instance will do.
func Check(t *testing.T, pointers ...any) {
	t.Helper()
	seen := map[string]bool{}
	for _, p := range pointers {
		typ := reflect.TypeOf(p)
		name, _, _ := strings.Cut(typ.Elem().Name(), "[")
		seen[name] = true
		for i := range typ.NumMethod() {
			for _, empty := range []bool{true, false} {
				call(t, name, typ.Elem(), i, empty)
			}
		}
	}
	for _, name := range typesWithMethods(t) {
		if !seen[name] {
			t.Errorf("the zero value of %s is not tested", name)
		}
	}
}

// call calls one method of a new zero value.
func call(t *testing.T, name string, typ reflect.Type, method int, empty bool) {
	t.Helper()
	v := reflect.New(typ)
	what := fmt.Sprintf("(%s zero value).%s", name, v.Type().Method(method).Name)
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s panics: %v", what, p)
		}
	}()
	m := v.Method(method)
	var args []reflect.Value
	for i := range m.Type().NumIn() {
		if m.Type().IsVariadic() && i == m.Type().NumIn()-1 {
			break
		}
		args = append(args, argument(m.Type().In(i), empty))
	}
	for _, result := range m.Call(args) {
		// Functions that are returned are part of what is offered: a cancel, an iterator.
		if result.Kind() == reflect.Func && !result.IsNil() {
			var inner []reflect.Value
			for i := range result.Type().NumIn() {
				inner = append(inner, argument(result.Type().In(i), false))
			}
			result.Call(inner)
		}
	}
}

// argument is a zero value, or a function that does nothing and returns zero values.
func argument(typ reflect.Type, empty bool) reflect.Value {
	if typ == reflect.TypeFor[context.Context]() {
		return reflect.ValueOf(context.Background())
	}
	if typ.Kind() != reflect.Func || empty {
		return reflect.Zero(typ)
	}
	return reflect.MakeFunc(typ, func([]reflect.Value) []reflect.Value {
		var results []reflect.Value
		for i := range typ.NumOut() {
			results = append(results, reflect.Zero(typ.Out(i)))
		}
		return results
	})
}

// typesWithMethods are the exported types of the package in the present folder that are
// structs.
func typesWithMethods(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				spec := spec.(*ast.TypeSpec)
				if _, isStruct := spec.Type.(*ast.StructType); isStruct && spec.Name.IsExported() {
					names = append(names, spec.Name.Name)
				}
			}
		}
	}
	return names
}
