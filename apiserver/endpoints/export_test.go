package endpoints

// DecodeReads makes s answer no read from bytes.
func DecodeReads(s Serving) Serving {
	s.decodeReads = true
	return s
}

// FromBytes says whether reads of a resource are answered from bytes.
func (r *Resource) FromBytes() bool { return r.encoded != nil }
