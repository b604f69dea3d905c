//go:build !unix

package sqlite

import "errors"

func limitFileSize(uint64) error    { return errors.ErrUnsupported }
func limitDescriptors(uint64) error { return errors.ErrUnsupported }
