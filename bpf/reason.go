package bpf

// label returns the metric label of reason, and whether programs of that direction
// can end with it.
func (reason redirectExitReason) label(forward bool) (string, bool) {
	switch reason {
	case redirectExitReasonEXIT_RESTORED:
		return "restored", !forward
	case redirectExitReasonEXIT_NO_FLOWS:
		return "no_flows", !forward
	case redirectExitReasonEXIT_OTHER_PEER:
		return "other_peer", !forward
	case redirectExitReasonEXIT_REDIRECTED:
		return "redirected", forward
	case redirectExitReasonEXIT_FALLBACK_GONE:
		return "fallback_gone", forward
	case redirectExitReasonEXIT_FALLBACK_HUNG:
		return "fallback_hung", forward
	case redirectExitReasonEXIT_PASSED_GONE:
		return "passed_gone", forward
	case redirectExitReasonEXIT_PASSED_HUNG:
		return "passed_hung", forward
	case redirectExitReasonEXIT_NO_FALLBACK:
		return "no_fallback", forward
	case redirectExitReasonEXIT_OTHER_PORT:
		return "other_port", forward
	case redirectExitReasonEXIT_OTHER_PROTOCOL:
		return "other_protocol", forward
	case redirectExitReasonEXIT_OTHER_ADDRESS:
		return "other_address", forward
	case redirectExitReasonEXIT_EXEMPT:
		return "exempt", forward
	case redirectExitReasonEXIT_OPTED_OUT:
		return "opted_out", forward
	case redirectExitReasonEXIT_NO_STORAGE:
		return "no_storage", forward
	case redirectExitReasonEXIT_CONNECTED:
		return "connected", forward
	case redirectExitReasonEXIT_NOT_CONFIGURED:
		return "not_configured", forward
	}
	return "", false
}
