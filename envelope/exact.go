package envelope

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strings"
)

// keepExactNames returns a canonical value with only those members that a t has under exactly the same name.
// encoding/json ignores case: it stores "Price" and "PRICE" in the field "price", and the last one wins. A value for a
// type with its own UnmarshalJSON method is returned unchanged.
func keepExactNames(value []byte, t reflect.Type) []byte {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(decoder) {
		return value
	}
	switch {
	case t.Kind() == reflect.Struct && isObject(value):
		fields := fieldTypes(t)
		return rebuild('{', '}', func(add func(...[]byte)) {
			for name, member := range members(value) {
				if field, known := fields[name]; known {
					add([]byte(`"`+name+`":`), keepExactNames(member, field))
				}
			}
		})
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && len(value) > 0 && value[0] == '[':
		return rebuild('[', ']', func(add func(...[]byte)) {
			for element := range elements(value) {
				add(keepExactNames(element, t.Elem()))
			}
		})
	}
	return value
}

var decoder = reflect.TypeFor[json.Unmarshaler]()

// fieldTypes returns the types of a struct's fields by their JSON names. The fields of embedded structs are included.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" && field.Type.Kind() == reflect.Struct {
			maps.Copy(fields, fieldTypes(field.Type))
			continue
		}
		if name == "" {
			name = field.Name
		}
		fields[name] = field.Type
	}
	return fields
}

// rebuild writes an object or an array. fill adds its elements, each in one or more parts.
func rebuild(open, end byte, fill func(add func(...[]byte))) []byte {
	var b bytes.Buffer
	b.WriteByte(open)
	fill(func(parts ...[]byte) {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		for _, part := range parts {
			b.Write(part)
		}
	})
	b.WriteByte(end)
	return b.Bytes()
}
