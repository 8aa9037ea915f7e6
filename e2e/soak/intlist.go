package main

import (
	"fmt"
	"strconv"
	"strings"
)

// intList is a flag of numbers that commas separate.
type intList []int

// String is the flag's value.
func (l *intList) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*l), " ", ","), "&[]")
}

// Set reads the flag's value.
func (l *intList) Set(text string) error {
	*l = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		*l = append(*l, n)
	}
	return nil
}
