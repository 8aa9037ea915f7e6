package server

import "fmt"

// invalid are the errors of flags, one for each that is wrong.
type invalid []error

// unless adds an error, unless what it is about holds.
func (i *invalid) unless(holds bool, format string, args ...any) {
	if !holds {
		*i = append(*i, fmt.Errorf(format, args...))
	}
}

// add adds an error, if there is one.
func (i *invalid) add(err error) {
	if err != nil {
		*i = append(*i, err)
	}
}
