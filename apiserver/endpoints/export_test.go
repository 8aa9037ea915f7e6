package endpoints

// DecodeReads makes s answer no read from bytes.
func DecodeReads(s Serving) Serving {
	s.decodeReads = true
	return s
}

// FromBytes says whether reads of a resource are answered from bytes.
func (r *Resource) FromBytes() bool { return r.encoded != nil }

// Pattern is the pattern of the route that serves a path; "" for none.
func (a *API) Pattern(path string) string {
	found := a.mux.find(path)
	for pattern, at := range a.mux.paths {
		if at == found {
			return pattern
		}
	}
	return ""
}

// WritesFromBytes says whether writes are answered without another encoding.
func (r *Resource) WritesFromBytes() bool { return r.written != nil }
