package apidocs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// object is a JSON object that keeps the order of its members, because readers of the document see that order.
type object []member

type member struct {
	name  string
	value json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *object) UnmarshalJSON(text []byte) error {
	in := json.NewDecoder(bytes.NewReader(text))
	if start, err := in.Token(); err != nil || start != json.Delim('{') {
		return errors.Join(err, errors.New("want a JSON object"))
	}
	*o = object{}
	for in.More() {
		name, err := in.Token()
		if err != nil {
			return err
		}
		m := member{name: name.(string)} // names are the only tokens here
		if err := in.Decode(&m.value); err != nil {
			return err
		}
		*o = append(*o, m)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	text := []byte("{")
	for i, m := range o {
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(append(text, name...), ':'), m.value...)
	}
	return append(text, '}'), nil
}

// get returns the value of a member.
func (o object) get(name string) (value json.RawMessage, ok bool) {
	for _, m := range o {
		if m.name == name {
			return m.value, true
		}
	}
	return nil, false
}

// set sets the value of a member. A new member is the last one.
func (o *object) set(name string, value json.RawMessage) {
	for i, m := range *o {
		if m.name == name {
			(*o)[i].value = value
			return
		}
	}
	*o = append(*o, member{name, value})
}

// remove removes a member, if there is one with this name.
func (o *object) remove(name string) {
	*o = slices.DeleteFunc(*o, func(m member) bool { return m.name == name })
}

// names returns the names of the members, in their order.
func (o object) names() (all []string) {
	for _, m := range o {
		all = append(all, m.name)
	}
	return all
}

// edit changes the object at this place in o. If there is none, it is made.
func (o *object) edit(change func(*object) error, place ...string) error {
	if len(place) == 0 {
		return change(o)
	}
	var inner object
	if text, ok := o.get(place[0]); ok {
		if err := json.Unmarshal(text, &inner); err != nil {
			return fmt.Errorf("%s: %w", place[0], err)
		}
	}
	if err := inner.edit(change, place[1:]...); err != nil {
		return err
	}
	text, err := json.Marshal(inner)
	o.set(place[0], text)
	return err
}

// merge returns o with the members of another object. Objects and lists that both have are joined.
func (o object) merge(other object) (object, error) {
	for _, m := range other {
		known, both := o.get(m.name)
		if !both {
			o.set(m.name, m.value)
			continue
		}
		joined, err := join(known, m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		o.set(m.name, joined)
	}
	return o, nil
}

// join joins two objects or two lists.
func join(a, b json.RawMessage) (json.RawMessage, error) {
	var lists [2][]json.RawMessage
	if json.Unmarshal(a, &lists[0]) == nil && json.Unmarshal(b, &lists[1]) == nil {
		return json.Marshal(slices.Concat(lists[0], lists[1]))
	}
	var objects [2]object
	if json.Unmarshal(a, &objects[0]) != nil || json.Unmarshal(b, &objects[1]) != nil {
		return nil, errors.New("two parts say something different")
	}
	joined, err := objects[0].merge(objects[1])
	if err != nil {
		return nil, err
	}
	return json.Marshal(joined)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
