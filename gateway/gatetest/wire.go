package gatetest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// client speaks the protocol of PostgreSQL, as far as the tests need it. See "Frontend/Backend Protocol" in its manual.
// Like a driver, it lets the server say which types the parameters of a statement have.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte // messages that were not sent yet
}

// oid is the number of a type in PostgreSQL.
type oid uint32

const (
	boolType    oid = 16
	byteaType   oid = 17
	bigintType  oid = 20
	integerType oid = 23
	textType    oid = 25
)

var typeNames = map[oid]string{boolType: "boolean", byteaType: "bytea", bigintType: "bigint", 21: "smallint",
	integerType: "integer", textType: "text", 701: "double precision", 1560: "bit", 1700: "numeric"}

func (o oid) String() string { return cmp.Or(typeNames[o], fmt.Sprintf("type %d", uint32(o))) }

// answer is what the server sends until it is ready for the next statement.
type answer struct {
	params  []oid
	columns []oid
	rows    [][][]byte // in text form; nil: NULL
	tag     string     // such as "UPDATE 3"
}

// dial connects to the server with its socket in this folder.
func dial(folder string) (*client, error) {
	conn, err := net.Dial("unix", filepath.Join(folder, ".s.PGSQL.5432"))
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, in: bufio.NewReader(conn)}
	c.add(0, int32(3<<16), "user", "agora", "database", "postgres", "client_encoding", "UTF8", "")
	if _, err := c.exchange(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// add adds a message to those to be sent. A kind of 0 stands for none.
func (c *client) add(kind byte, fields ...any) {
	if kind != 0 {
		c.out = append(c.out, kind)
	}
	start := len(c.out)
	c.out = append(c.out, 0, 0, 0, 0)
	for _, field := range fields {
		switch field := field.(type) {
		case int16:
			c.out = binary.BigEndian.AppendUint16(c.out, uint16(field))
		case int32:
			c.out = binary.BigEndian.AppendUint32(c.out, uint32(field))
		case byte:
			c.out = append(c.out, field)
		case string:
			c.out = append(append(c.out, field...), 0)
		case []byte:
			c.out = append(c.out, field...)
		}
	}
	binary.BigEndian.PutUint32(c.out[start:], uint32(len(c.out)-start))
}

// exchange sends the messages and reads the answer to them.
func (c *client) exchange() (a answer, err error) {
	if _, err := c.conn.Write(c.out); err != nil {
		return a, err
	}
	c.out = c.out[:0]
	var refused error
	for {
		var head [5]byte
		if _, err := io.ReadFull(c.in, head[:]); err != nil {
			return a, cmp.Or(refused, err)
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(c.in, body); err != nil {
			return a, err
		}
		switch head[0] {
		case 't':
			for body = body[2:]; len(body) > 0; body = body[4:] {
				a.params = append(a.params, oid(binary.BigEndian.Uint32(body)))
			}
		case 'T':
			for body = body[2:]; len(body) > 0; {
				_, rest, _ := bytes.Cut(body, []byte{0}) // the name of the column
				a.columns = append(a.columns, oid(binary.BigEndian.Uint32(rest[6:])))
				body = rest[18:]
			}
		case 'D':
			a.rows = append(a.rows, dataRow(body))
		case 'C':
			a.tag = string(bytes.TrimSuffix(body, []byte{0}))
		case 'E':
			refused = cmp.Or(refused, refusal(body))
		case 'Z':
			return a, refused
		}
	}
}

func dataRow(body []byte) (values [][]byte) {
	for body = body[2:]; len(body) > 0; {
		length := int32(binary.BigEndian.Uint32(body))
		if body = body[4:]; length < 0 {
			values = append(values, nil)
			continue
		}
		values = append(values, body[:length:length])
		body = body[length:]
	}
	return values
}

// refusal returns the error in an ErrorResponse.
func refusal(body []byte) error {
	fields := map[byte]string{}
	for field := range bytes.SplitSeq(body, []byte{0}) {
		if len(field) > 0 {
			fields[field[0]] = string(field[1:])
		}
	}
	return fmt.Errorf("%s (SQLSTATE %s)", fields['M'], fields['C'])
}

// script runs statements without parameters. If there are several, they are one transaction.
func (c *client) script(text string) error {
	c.add('Q', text)
	_, err := c.exchange()
	return err
}

// prepared is a statement that the server has parsed.
type prepared struct {
	name            string
	params, columns []oid
}

func (c *client) prepare(name, text string) (prepared, error) {
	c.add('P', name, text, int16(0))
	c.add('D', byte('S'), name)
	c.add('S')
	a, err := c.exchange()
	return prepared{name, a.params, a.columns}, err
}

// run runs a prepared statement. changed is the number in its tag. Each argument must have the type of its parameter,
// or be nil.
func (c *client) run(p prepared, args []any) (rows []row, changed int64, err error) {
	fields := []any{"", p.name, int16(1), int16(1), int16(len(args))} // all parameters are in binary form
	for _, arg := range args {
		switch arg := arg.(type) {
		case nil:
			fields = append(fields, int32(-1))
		case int64:
			fields = append(fields, int32(8), binary.BigEndian.AppendUint64(nil, uint64(arg)))
		case string:
			fields = append(fields, int32(len(arg)), []byte(arg))
		case []byte:
			fields = append(fields, int32(len(arg)), arg)
		default:
			return nil, 0, fmt.Errorf("an argument is a %T", arg)
		}
	}
	c.add('B', append(fields, int16(0))...) // the result is in text form
	c.add('E', "", int32(0))
	c.add('S')
	a, err := c.exchange()
	if err != nil {
		return nil, 0, err
	}
	for _, texts := range a.rows {
		values := make(row, len(texts))
		for i, text := range texts {
			if values[i], err = parse(p.columns[i], text); err != nil {
				return nil, 0, err
			}
		}
		rows = append(rows, values)
	}
	words := strings.Fields(a.tag)
	if len(words) < 2 {
		return nil, 0, fmt.Errorf("PostgreSQL answers %q", a.tag)
	}
	changed, err = strconv.ParseInt(words[len(words)-1], 10, 64)
	return rows, changed, err
}

// parse returns the value for which PostgreSQL has sent a text.
func parse(o oid, text []byte) (any, error) {
	switch {
	case text == nil:
		return nil, nil
	case o == boolType:
		return string(text) == "t", nil
	case o == byteaType:
		return hex.DecodeString(strings.TrimPrefix(string(text), `\x`))
	case o == bigintType || o == integerType:
		return strconv.ParseInt(string(text), 10, 64)
	}
	return string(text), nil
}
