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
// panics, and for each exported type of the package in the present folder that is a struct
// or has methods, and is not among the values. Of generic types, any instance will do.
// Numbers are tried with the values at the ends of their ranges too: they come from other
// drivers, and from peers.
func Check(t *testing.T, pointers ...any) {
	t.Helper()
	seen := map[string]bool{}
	for _, p := range pointers {
		typ := reflect.TypeOf(p)
		name, _, _ := strings.Cut(typ.Elem().Name(), "[")
		seen[name] = true
		for i := range typ.NumMethod() {
			for _, v := range valuesOf(typ.Elem()) {
				for _, empty := range []bool{true, false} {
					call(t, name, v(), i, empty)
				}
			}
		}
	}
	for _, name := range typesWithMethods(t) {
		if !seen[name] {
			t.Errorf("the zero value of %s is not tested", name)
		}
	}
}

// valuesOf makes pointers to the zero value and, of a number, to the least and the greatest.
func valuesOf(typ reflect.Type) (list []func() reflect.Value) {
	of := func(set func(reflect.Value)) {
		list = append(list, func() reflect.Value {
			v := reflect.New(typ)
			set(v.Elem())
			return v
		})
	}
	of(func(reflect.Value) {})
	switch {
	case typ.Kind() >= reflect.Int && typ.Kind() <= reflect.Int64:
		of(func(v reflect.Value) { v.SetInt(-1 << (typ.Bits() - 1)) })
		of(func(v reflect.Value) { v.SetInt(1<<(typ.Bits()-1) - 1) })
	case typ.Kind() >= reflect.Uint && typ.Kind() <= reflect.Uint64:
		of(func(v reflect.Value) { v.SetUint(1<<typ.Bits() - 1) })
	}
	return list
}

// call calls one method of a value that v points to.
func call(t *testing.T, name string, v reflect.Value, method int, empty bool) {
	t.Helper()
	what := fmt.Sprintf("(%s).%s", name, v.Type().Method(method).Name)
	if v.Elem().IsZero() {
		what = fmt.Sprintf("(%s zero value).%s", name, v.Type().Method(method).Name)
	}
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
// structs, or have methods and are no interfaces.
func typesWithMethods(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	declared, withMethods := map[string]bool{}, map[string]bool{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv != nil && decl.Name.IsExported() {
					withMethods[receiver(decl.Recv.List[0].Type)] = true
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					spec, ok := spec.(*ast.TypeSpec)
					if !ok || !spec.Name.IsExported() || spec.Assign.IsValid() {
						continue
					}
					if _, isStruct := spec.Type.(*ast.StructType); isStruct {
						names = append(names, spec.Name.Name)
					} else {
						declared[spec.Name.Name] = true
					}
				}
			}
		}
	}
	for name := range declared {
		if withMethods[name] {
			names = append(names, name)
		}
	}
	return names
}

// receiver is the name of the type that a method is of.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
