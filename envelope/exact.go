package envelope

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strings"
)

// exactly returns a canonical value without the members that encoding/json would store in a t under a name that
// differs in case: it folds "Price" and "PRICE" onto "price", and the last one wins. Members that t does not know
// are left out with them. A type that decodes itself gets its value as it stands.
func exactly(value []byte, t reflect.Type) []byte {
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
					add([]byte(`"`+name+`":`), exactly(member, field))
				}
			}
		})
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && len(value) > 0 && value[0] == '[':
		return rebuild('[', ']', func(add func(...[]byte)) {
			for element := range elements(value) {
				add(exactly(element, t.Elem()))
			}
		})
	}
	return value
}

var decoder = reflect.TypeFor[json.Unmarshaler]()

// fieldTypes returns the types of a struct's fields by their names in JSON, those of embedded structs among them.
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

// rebuild writes an object or an array from the parts that fill adds.
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
