package postgres

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
)

// assignAll puts the values of a row into variables as the Scan of database/sql.Rows does, for the types that
// extensions may use: integers, texts, bytes and booleans. The Scan of pgx is stricter: it reads no integer as a bool.
func assignAll(into []any, values []any) error {
	if len(into) != len(values) {
		return fmt.Errorf("the row has %d columns, but %d variables are given", len(values), len(into))
	}
	for i := range into {
		if err := assign(into[i], values[i]); err != nil {
			return fmt.Errorf("column %d: %w", i+1, err)
		}
	}
	return nil
}

func assign(into, value any) error {
	switch v := value.(type) {
	case int16:
		value = int64(v)
	case int32:
		value = int64(v)
	}
	switch into := into.(type) {
	case *any:
		*into = value
		return nil
	case sql.Scanner:
		return into.Scan(value)
	}
	p := reflect.ValueOf(into)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return errors.New("the variable must be given as a pointer")
	}
	return assignTo(p.Elem(), value)
}

// assignTo sets a variable of any type with a suitable kind.
func assignTo(to reflect.Value, value any) error {
	mismatch := fmt.Errorf("cannot read a %T into a %s", value, to.Type())
	if value == nil {
		switch to.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Interface:
			to.SetZero()
			return nil
		}
		return mismatch
	}
	switch kind := to.Kind(); {
	case kind == reflect.Pointer:
		p := reflect.New(to.Type().Elem())
		to.Set(p)
		return assignTo(p.Elem(), value)
	case kind == reflect.Slice && to.Type().Elem().Kind() == reflect.Uint8:
		switch v := value.(type) {
		case []byte:
			to.SetBytes(append([]byte{}, v...))
			return nil
		case string:
			to.SetBytes([]byte(v))
			return nil
		}
	case kind == reflect.String:
		switch v := value.(type) {
		case string:
			to.SetString(v)
			return nil
		case []byte:
			to.SetString(string(v))
			return nil
		}
	case to.CanInt():
		if v, ok := value.(int64); ok && !to.OverflowInt(v) {
			to.SetInt(v)
			return nil
		}
	case to.CanUint():
		if v, ok := value.(int64); ok && v >= 0 && !to.OverflowUint(uint64(v)) {
			to.SetUint(uint64(v))
			return nil
		}
	case kind == reflect.Bool:
		switch v := value.(type) {
		case bool:
			to.SetBool(v)
			return nil
		case int64:
			if v == 0 || v == 1 {
				to.SetBool(v == 1)
				return nil
			}
		}
	}
	return mismatch
}
