//! Sandboxes over HTTP: the same claims in boxes of Airlock's own, made by root and by an ordinary user, in Docker and in
//! Podman. Programs inside are what busybox has.

mod files;
mod hostile;
mod life;
mod place;
mod programs;
mod reconnect;
mod stop;
mod terminal;

pub(crate) use place::{Place, Sandbox};

/// Each claim once a kind of box.
macro_rules! everywhere {
    ($($module:ident { $($claim:ident),* $(,)? })*) => {
        everywhere! { native, crate::Place::native() => $($module { $($claim),* })* }
        everywhere! { ordinary, crate::Place::ordinary() => $($module { $($claim),* })* }
        everywhere! { docker, crate::Place::docker() => $($module { $($claim),* })* }
        everywhere! { podman, crate::Place::podman() => $($module { $($claim),* })* }
    };
    ($kind:ident, $place:expr => $($module:ident { $($claim:ident),* })*) => {
        mod $kind {
            $(mod $module { $(
                #[test]
                fn $claim() { crate::$module::$claim(&$place) }
            )* })*
        }
    };
}

everywhere! {
    programs {
        what_a_program_does_is_answered,
        a_program_reads_what_is_typed,
        what_is_sent_again_is_typed_once,
        output_that_is_no_text_comes_as_base64,
        a_program_outlives_whoever_asked_for_it,
        background_programs_are_listed_and_signalled,
        typing_waits_for_the_program,
    }
    reconnect {
        events_go_on_where_a_cut_connection_ended,
        pieces_by_offset_make_the_whole,
        logs_follow_a_program_to_its_end,
        forgotten_output_is_named,
    }
    stop {
        a_program_that_ignores_sigterm_is_gone,
        a_stopped_program_is_gone,
        a_program_in_a_paused_sandbox_is_gone,
        a_sandbox_is_gone_with_everything_in_it,
    }
    terminal {
        a_shell_sees_its_terminal,
        two_viewers_see_the_same_and_one_comes_back,
    }
    files {
        a_file_comes_back_as_it_was_put,
        parts_of_a_file_are_had_by_range,
        a_folder_of_a_thousand_is_listed,
        folders_are_made_and_removed,
        an_upload_that_is_cut_leaves_nothing,
        a_full_workspace_says_so,
    }
    hostile {
        links_and_special_files_are_not_opened,
        names_that_point_elsewhere_are_refused,
        swapped_folders_never_lead_outside,
    }
    life {
        a_sandbox_is_made_shown_listed_and_ended,
        a_key_makes_one_sandbox,
        another_key_sees_nothing,
        a_paused_sandbox_does_nothing,
        a_fork_has_a_workspace_of_its_own,
        a_pause_during_a_fork_stays,
        files_of_a_sandbox_are_kept_as_artifacts,
        an_idle_sandbox_ends,
    }
}
