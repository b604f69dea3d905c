package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"text/template"
)

// Listing are the flags of the commands that list something.
type Listing struct {
	JSON   bool       `xor:"form" help:"Print one line of JSON for each, also on a terminal."`
	Text   bool       `xor:"form" help:"Print a table, also if standard output is not a terminal. On a terminal, long names and ids are shortened."`
	Format *RowFormat `xor:"form" placeholder:"TEMPLATE" help:"Print a line for each with this Go template, such as '{{.Name}}'. If a field is not known, the error lists all."`
}

// Show prints all values: each as a line of JSON, as a line in the form of --format, or as a row of a table. cells
// returns the cells of a row. long are the columns whose cells may be shortened, so that the table fits a terminal.
func Show[T any](env Environment, l Listing, head []string, all []T, cells func(T) []string, long ...int) error {
	if err := l.Format.Check(*new(T)); err != nil {
		return err
	}
	if l.Format != nil || l.JSON || !l.Text && !env.StdoutIsTerminal {
		for _, one := range all {
			if err := env.PrintRow(l.Format, one); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	rows := [][]string{head}
	for _, one := range all {
		row := cells(one)
		for i, cell := range row {
			row[i] = cmp.Or(Printable(cell), "-")
		}
		rows = append(rows, row)
	}
	return env.printTable(rows, long...)
}

// PrintRow prints row as one line of JSON or, unless format is nil, as one line of this format.
func (env Environment) PrintRow(format *RowFormat, row any) error {
	if format == nil {
		return env.PrintJSON(row)
	}
	var line bytes.Buffer
	if err := format.Execute(&line, safeFields(row)); err != nil {
		return fmt.Errorf("--format: %w", templateError(err))
	}
	line.WriteByte('\n')
	_, err := env.Stdout.Write(line.Bytes())
	return err
}

// RowFormat is a Go template (https://pkg.go.dev/text/template) for one line of output.
type RowFormat struct{ *template.Template }

// ErrFormat is in the error of a template that is wrong whatever it is used for. It leads to ExitUsage.
var ErrFormat = errors.New("--format")

func (f *RowFormat) UnmarshalText(text []byte) (err error) {
	f.Template, err = template.New("format").Funcs(template.FuncMap{"json": encoded}).Parse(string(text))
	if err != nil {
		return templateError(err)
	}
	return nil
}

// encoded returns v as JSON. Templates call it by the name json.
func encoded(v any) (string, error) {
	var b strings.Builder
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	err := out.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// Check returns an error with ErrFormat if the template names a field that rows of this type do not have. row is any
// row. f may be nil.
func (f *RowFormat) Check(row any) error {
	if f == nil {
		return nil
	}
	err := f.Execute(io.Discard, row)
	if err == nil {
		return nil
	}
	name := unknownField.FindStringSubmatch(err.Error())
	if name == nil || name[2] != reflect.TypeOf(row).String() {
		return nil // an empty row may lack what the template needs
	}
	return fmt.Errorf("%w: there is no field %s; the fields are %s", ErrFormat, "."+name[1], fieldNames(row))
}

// unknownField matches the error of a template that names an unknown field of a type.
var unknownField = regexp.MustCompile(`can't evaluate field (\w+) in type (\S+)$`)

// templateError returns an error of package template without the name of the template.
func templateError(err error) error {
	return errors.New(strings.NewReplacer("template: format:", "column ", "executing \"format\" at ", "").Replace(err.Error()))
}

// fieldNames returns the fields of a row for a template, such as ".Type .Thread".
func fieldNames(row any) string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeOf(row)) {
		if field.IsExported() && !field.Anonymous {
			names = append(names, "."+field.Name)
		}
	}
	return strings.Join(names, " ")
}

// FormatHelp returns a paragraph about the fields of --format.
func FormatHelp(row any) string {
	return "Fields of --format: " + fieldNames(row) + ". A template can also use json, such as '{{json .}}', and the " +
		"functions of Go templates.\n\n"
}

// safeFields returns a copy of a row in which every text is escaped, so that a line break in one cannot forge
// a line.
func safeFields(row any) any {
	value := reflect.New(reflect.TypeOf(row)).Elem()
	value.Set(reflect.ValueOf(row))
	escapeIn(value)
	return value.Interface()
}

// escapeIn escapes the texts in a value. It copies lists and maps, because other values may share them.
func escapeIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(Printable(v.String()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				escapeIn(v.Field(i))
			}
		}
	case reflect.Interface, reflect.Pointer:
		if !v.IsNil() {
			inner := reflect.New(v.Elem().Type())
			inner.Elem().Set(v.Elem())
			escapeIn(inner.Elem())
			if v.Kind() == reflect.Pointer {
				v.Set(inner)
			} else {
				v.Set(inner.Elem())
			}
		}
	case reflect.Slice:
		if v.IsNil() || v.Type().Elem().Kind() == reflect.Uint8 { // the bytes of JSON are escaped when they are printed
			return
		}
		all := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(all, v)
		for i := range all.Len() {
			escapeIn(all.Index(i))
		}
		v.Set(all)
	case reflect.Map:
		if v.IsNil() {
			return
		}
		all := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			pair := [2]reflect.Value{key, v.MapIndex(key)}
			for i, part := range pair {
				pair[i] = reflect.New(part.Type()).Elem()
				pair[i].Set(part)
				escapeIn(pair[i])
			}
			all.SetMapIndex(pair[0], pair[1])
		}
		v.Set(all)
	}
}
